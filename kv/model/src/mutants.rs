//! Protocols with one rule less. Each shows why the rule is needed.

use crate::explore::{Outcome, grouped};
use crate::violation::Violation;

/// A mutant, the configuration that finds it, and what it breaks there.
#[derive(Clone, Copy, Debug)]
pub struct Mutation {
    /// Which.
    pub mutant: Mutant,
    /// Its name.
    pub name: &'static str,
    /// What it does.
    pub what: &'static str,
    /// The configuration that finds it.
    pub configuration: &'static str,
    /// Whether a violation is the one that it leads to.
    pub leads_to: fn(&Violation) -> bool,
}

impl Mutation {
    /// A row of the table in `kv/docs/protocol.md`.
    pub fn row(&self, outcome: &Outcome) -> String {
        let Mutation { name, what, configuration, .. } = self;
        let states = grouped(outcome.states);
        format!("| `{name}` | {what} | `{configuration}` | {states} | {} |", outcome.verdict)
    }
}

macro_rules! mutants {
    ($($mutant:ident $name:literal
        in $configuration:literal leads to $violation:ident: $what:literal;)*) => {
        /// A rule of the protocol that is broken.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum Mutant {
            $(#[doc = $what] $mutant,)*
        }

        /// All mutants.
        pub const MUTATIONS: &[Mutation] = &[$(Mutation {
            mutant: Mutant::$mutant,
            name: $name,
            what: $what,
            configuration: $configuration,
            leads_to: |violation| matches!(violation, Violation::$violation { .. }),
        }),*];
    };
}

mutants! {
    AnswerBeforeTail "answer_before_tail" in "crash-small" leads to Lost:
        "The head answers when it has appended.";
    StaleReads "stale_reads" in "declared-tiny" leads to StaleRead:
        "The head answers reads without the chain.";
    ReadConfirmedByNext "read_confirmed_by_next"
        in "two-copies-declared-twice-tiny" leads to StaleRead:
        "The successor alone confirms a read, and not the tail.";
    RepeatAppliedAgain "repeat_applied_again" in "break" leads to Doubled:
        "The head looks no request up in the session.";
    LastAnswerOnly "last_answer_only" in "break-long" leads to OtherOutcome:
        "A session keeps one answer, whatever is outstanding.";
    RequestAheadOfMap "request_ahead_of_map" in "crash-small" leads to Lost:
        "A server judges a request under a version that it has not heard.";
    NoVersionOnLanes "no_version_on_lanes" in "alone-move-twice" leads to Lost:
        "A head takes requests of lanes that know an earlier tenure only.";
    AnnounceWithoutResend "announce_without_resend" in "alone-move-twice" leads to Stuck:
        "A client announces a version and sends nothing again.";
    ResendOutOfOrder "resend_out_of_order" in "crash-small" leads to Lost:
        "A client sends what is outstanding again, the newest first.";
    VersionOfAnotherShard "version_of_another_shard" in "alone-move-twice-other" leads to Stuck:
        "A client announces a version that it heard for another shard.";
    OldLinkAccepted "old_link_accepted" in "declared-tiny" leads to Lost:
        "A follower goes on with a link of an older epoch.";
    ResendFromAcked "resend_from_acked" in "two-copies-break" leads to Doubled:
        "After a new link all that is not acknowledged is sent and applied again.";
    SyncedNotPassedOn "synced_not_passed_on" in "two-copies-break" leads to Stuck:
        "What a successor confirms on a new link is not told to the predecessor.";
    TruncateOnPromotion "truncate_on_promotion"
        in "two-copies-declared-twice-tiny" leads to NoPrefix:
        "A new head drops what is not acknowledged.";
    SessionsNotSent "sessions_not_sent" in "move-small" leads to Doubled:
        "A transfer leaves the sessions out.";
    RecordsWaitForRows "records_wait_for_rows" in "move-small" leads to WrongRows:
        "A joiner applies no record before all rows are there.";
    WholeBeforeSuffix "whole_before_suffix" in "move-small" leads to NoPrefix:
        "A joiner counts as in sync when it has the rows, whatever records are under way.";
    SourceGoesOnAlone "source_goes_on_alone" in "move-small" leads to NoPrefix:
        "Between report and map the source does not wait for the joiner.";
    SuccessorBesideJoiner "successor_beside_joiner" in "move-crash-tiny" leads to NoPrefix:
        "Between report and map the old successor gets records beside the joiner.";
    TargetLastThenHead "target_last_then_head" in "move-small" leads to NoPrefix:
        "A target is filled behind the tail, and then named head.";
    MovedBeforeInSync "moved_before_in_sync" in "move-small" leads to WrongRows:
        "The map names the target while rows travel.";
    KeepsOldCopy "keeps_old_copy" in "alone-queue-twice" leads to NoPrefix:
        "Who left a chain and joins it again goes on with what it had.";
    HaveOfOldTransfer "have_of_old_transfer" in "move-twice" leads to Gap:
        "A source counts what a joiner had of an earlier transfer.";
    ReportOfAnyTransfer "report_of_any_transfer" in "crash-declared" leads to WrongRows:
        "The scheduler takes the report of an earlier transfer.";
    PromoteUnsynced "promote_unsynced" in "move-crash-tiny" leads to WrongRows:
        "A loss puts the joiner into the chain.";
    SendBeforeSave "send_before_save" in "scheduler-declared-tiny" leads to WrongRows:
        "The scheduler sends a version, and then saves it.";
    NoCreditKept "no_credit_kept" in "credits-kept" leads to Stuck:
        "Records spend the last credit of a lane, and confirmations need one.";
    NoRoomBehind "no_room_behind" in "credits-ring" leads to Stuck:
        "A record leaves no credit for those that end at the next server.";
}

/// The mutant of a name.
pub fn named(name: &str) -> Option<&'static Mutation> {
    MUTATIONS.iter().find(|mutation| mutation.name == name)
}
