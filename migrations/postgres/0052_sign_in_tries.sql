-- Tries at the passwords and codes of accounts, for all hosts together; by the hash of what was tried.

CREATE TABLE sign_in_tries (
    what BYTEA NOT NULL PRIMARY KEY,
    count BIGINT NOT NULL,
    last_at BIGINT NOT NULL,
    expires_at BIGINT NOT NULL
);
CREATE INDEX sign_in_tries_by_expiry ON sign_in_tries (expires_at);
