//! Where server threads listen.

/// Where a server thread listens.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct ServerAddress {
    /// For messages: "server 0 thread 1".
    pub name: String,
    /// In the form that its van's `connect` takes.
    pub address: String,
}
