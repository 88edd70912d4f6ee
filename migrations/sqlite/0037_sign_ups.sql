-- E-mail addresses that get an account once a link that was sent to them was opened.

CREATE TABLE sign_ups (
    -- SHA-256 of the link's secret.
    hash       BLOB NOT NULL PRIMARY KEY,
    email      TEXT NOT NULL CONSTRAINT sign_ups_email UNIQUE,
    expires_at INTEGER NOT NULL
) STRICT;
CREATE INDEX sign_ups_by_expiry ON sign_ups (expires_at);
