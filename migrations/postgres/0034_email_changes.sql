-- E-mail addresses that accounts are to have once a link that was sent to them was opened.

CREATE TABLE email_changes (
    -- SHA-256 of the link's secret.
    hash       BYTEA NOT NULL PRIMARY KEY,
    account_id UUID NOT NULL CONSTRAINT email_changes_account UNIQUE REFERENCES accounts (id),
    email      TEXT NOT NULL,
    expires_at BIGINT NOT NULL
);
CREATE INDEX email_changes_by_expiry ON email_changes (expires_at);
