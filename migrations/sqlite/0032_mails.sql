-- Mails that are to be sent. A row is deleted when its mail was sent, or cannot be.

CREATE TABLE mails (
    id         BLOB NOT NULL PRIMARY KEY,
    recipient  TEXT NOT NULL,
    -- Subject and text, sealed.
    content    BLOB NOT NULL,
    -- How often it was tried, and when it is to be tried next.
    attempts   INTEGER NOT NULL,
    due_at     INTEGER NOT NULL,
    -- When what it says is over: then it is not sent any more.
    expires_at INTEGER NOT NULL
) STRICT;
CREATE INDEX mails_due ON mails (due_at);
CREATE INDEX mails_by_expiry ON mails (expires_at);
