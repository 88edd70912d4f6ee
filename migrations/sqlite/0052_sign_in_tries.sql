-- Tries at the passwords and codes of accounts, for all hosts together; by the hash of what was tried.

CREATE TABLE sign_in_tries (
    what BLOB NOT NULL PRIMARY KEY,
    count INTEGER NOT NULL,
    last_at INTEGER NOT NULL,
    expires_at INTEGER NOT NULL
) STRICT;
CREATE INDEX sign_in_tries_by_expiry ON sign_in_tries (expires_at);
