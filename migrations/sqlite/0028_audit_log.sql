-- Who has changed what. The rows of a scope are a chain: each is authenticated together with the one before it.

CREATE TABLE audit_log (
    scope_id      BLOB    NOT NULL REFERENCES scopes (id),
    number        INTEGER NOT NULL,
    at            INTEGER NOT NULL,
    origin        TEXT    NOT NULL,
    account_id    BLOB,
    credential_id BLOB,
    action        TEXT    NOT NULL,
    subject_id    BLOB,
    -- What was asked for, as JSON, without secrets; empty if there is no more to say.
    details       TEXT    NOT NULL,
    request_id    BLOB,
    address       TEXT    NOT NULL,
    -- When the row before it was written, which may have been deleted since.
    previous_at   INTEGER,
    -- The digest of the row before it; empty for the first.
    previous      BLOB    NOT NULL,
    digest        BLOB    NOT NULL,
    PRIMARY KEY (scope_id, number),
    CHECK (number > 0)
) STRICT;
CREATE INDEX audit_log_by_account ON audit_log (scope_id, account_id, number);
CREATE INDEX audit_log_by_time ON audit_log (at);

-- From here on, what each engine says in its own way.

CREATE TRIGGER audit_log_is_appended_to BEFORE UPDATE ON audit_log BEGIN
    SELECT RAISE(ABORT, 'rows of the audit log are not changed');
END;
