//! What one host may ask the host of a node.

use crate::string_enum::string_enum;

string_enum! {
    /// What a node is to do.
    RequestKind {
        /// Serve a session, and say where.
        Serve "serve",
        /// End a session, and store its last traffic.
        End "end",
        /// Apply everything that the database has of it now.
        Apply "apply",
    }
}
