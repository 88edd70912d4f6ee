-- The root certificates of the local authority, by the domain that each is for, with their sealed keys.

CREATE TABLE local_roots (
    domain TEXT NOT NULL PRIMARY KEY,
    certificate TEXT NOT NULL,
    sealed_key BLOB NOT NULL
) STRICT;
