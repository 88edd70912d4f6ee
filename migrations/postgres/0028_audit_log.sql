-- Who has changed what. The rows of a scope are a chain: each is authenticated together with the one before it.

CREATE TABLE audit_log (
    scope_id      UUID   NOT NULL REFERENCES scopes (id),
    number        BIGINT NOT NULL,
    at            BIGINT NOT NULL,
    origin        TEXT   NOT NULL,
    account_id    UUID,
    credential_id UUID,
    action        TEXT   NOT NULL,
    subject_id    UUID,
    -- What was asked for, as JSON, without secrets; empty if there is no more to say.
    details       TEXT   NOT NULL,
    request_id    UUID,
    address       TEXT   NOT NULL,
    -- When the row before it was written, which may have been deleted since.
    previous_at   BIGINT,
    -- The digest of the row before it; empty for the first.
    previous      BYTEA  NOT NULL,
    digest        BYTEA  NOT NULL,
    PRIMARY KEY (scope_id, number),
    CHECK (number > 0)
);
CREATE INDEX audit_log_by_account ON audit_log (scope_id, account_id, number);
CREATE INDEX audit_log_by_time ON audit_log (at);

-- From here on, what each engine says in its own way.

CREATE FUNCTION refuse_change_of_audit_log() RETURNS TRIGGER LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'rows of the audit log are not changed';
END;
$$;
CREATE TRIGGER audit_log_is_appended_to BEFORE UPDATE ON audit_log FOR EACH ROW
    EXECUTE FUNCTION refuse_change_of_audit_log();
