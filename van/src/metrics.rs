//! Counters of one transport: plain numbers in the owning thread, units in the names.

/// What a transport has done since it was made, and the endpoint on top of it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// Frames posted and sent off.
    pub frames_sent: u64,
    /// Frames received whole.
    pub frames_received: u64,
    /// Bytes handed to the wire, framing included.
    pub bytes_sent: u64,
    /// Bytes taken from the wire, framing included.
    pub bytes_received: u64,
    /// Requests and answers posted; several share a frame where they can, and bare answers an
    /// image. Counted by the endpoint.
    pub messages_sent: u64,
    /// Requests and answers received, likewise.
    pub messages_received: u64,
    /// Bytes of messages that were put together in a frame: each is a copy of what the caller has.
    /// Counted by the endpoint.
    pub message_bytes_copied: u64,
    /// Bytes of rendezvous payload that had to be copied in user space on the way in or out. Where
    /// memory is shared, the one copy from there into its place is the transfer itself, as is the
    /// kernel's at a socket, and does not count.
    pub payload_bytes_copied: u64,
    /// System calls made.
    pub system_calls: u64,
    /// Times [`crate::Transport::wait`] went to sleep in the kernel.
    pub sleeps: u64,
}

impl std::ops::Add for Counters {
    type Output = Counters;

    fn add(self, other: Counters) -> Counters {
        Counters {
            frames_sent: self.frames_sent + other.frames_sent,
            frames_received: self.frames_received + other.frames_received,
            bytes_sent: self.bytes_sent + other.bytes_sent,
            bytes_received: self.bytes_received + other.bytes_received,
            messages_sent: self.messages_sent + other.messages_sent,
            messages_received: self.messages_received + other.messages_received,
            message_bytes_copied: self.message_bytes_copied + other.message_bytes_copied,
            payload_bytes_copied: self.payload_bytes_copied + other.payload_bytes_copied,
            system_calls: self.system_calls + other.system_calls,
            sleeps: self.sleeps + other.sleeps,
        }
    }
}
