//! Which messages stay in their process.
//!
//! Without ractor's `cluster` feature every type is a message. With it each message type says itself whether it crosses to
//! other processes, for the whole build. Ours never do by ractor's own means: what crosses is packed by [`crate::wire`]
//! and carried by the gateways of the cluster.

/// Declares the message types of actors: `local_message!(PoolMessage, LeaseMessage)`.
#[cfg(feature = "cluster")]
#[macro_export]
macro_rules! local_message {
    ($($message:ty),+ $(,)?) => {
        $(impl $crate::ractor::Message for $message {})+
    };
}

/// Declares the message types of actors: `local_message!(PoolMessage, LeaseMessage)`.
#[cfg(not(feature = "cluster"))]
#[macro_export]
macro_rules! local_message {
    ($($message:ty),+ $(,)?) => {};
}
