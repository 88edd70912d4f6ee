//! Resources that are gone.

use schemars::JsonSchema;
use serde::Serialize;
use uuid::Uuid;

macro_rules! deleted {
    ($(#[$meta:meta])* $name:ident { $key:ident: $type:ty }) => {
        #[derive(Serialize, JsonSchema)]
        $(#[$meta])*
        pub struct $name {
            $key: $type,
            /// Always true.
            #[schemars(extend("const" = true))]
            deleted: bool,
        }

        impl $name {
            pub fn new($key: $type) -> Self {
                Self { $key, deleted: true }
            }
        }
    };
}

deleted! {
    /// A tunnel that is gone
    DeletedTunnel { id: Uuid }
}

deleted! {
    /// An extra port that is gone
    DeletedExtraPort { id: Uuid }
}

deleted! {
    /// A webhook endpoint that is gone
    DeletedWebhook { id: Uuid }
}

deleted! {
    /// A custom domain that is gone
    DeletedDomain { domain: String }
}
