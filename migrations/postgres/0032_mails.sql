-- Mails that are to be sent. A row is deleted when its mail was sent, or cannot be.

CREATE TABLE mails (
    id         UUID NOT NULL PRIMARY KEY,
    recipient  TEXT NOT NULL,
    -- Subject and text, sealed.
    content    BYTEA NOT NULL,
    -- How often it was tried, and when it is to be tried next.
    attempts   BIGINT NOT NULL,
    due_at     BIGINT NOT NULL,
    -- When what it says is over: then it is not sent any more.
    expires_at BIGINT NOT NULL
);
CREATE INDEX mails_due ON mails (due_at);
CREATE INDEX mails_by_expiry ON mails (expires_at);
