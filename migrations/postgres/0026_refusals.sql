-- Requests that were refused to a caller, so that people can look up why.

CREATE TABLE refusals (
    request_id    UUID    NOT NULL PRIMARY KEY,
    at            BIGINT  NOT NULL,
    scope_id      UUID    NOT NULL REFERENCES scopes (id),
    account_id    UUID    NOT NULL REFERENCES accounts (id),
    credential    TEXT    NOT NULL,
    credential_id UUID    NOT NULL,
    method        TEXT    NOT NULL,
    path          TEXT    NOT NULL,
    status        BIGINT  NOT NULL,
    code          TEXT    NOT NULL,
    detail        TEXT    NOT NULL,
    -- The check that has refused.
    stage         TEXT    NOT NULL,
    rule          TEXT,
    -- As JSON: the wrong fields, and the modules that have refused.
    faults        TEXT    NOT NULL,
    modules       TEXT    NOT NULL,
    -- The set of policies that has refused; 0 if none has.
    generation    BIGINT  NOT NULL,
    -- What the module was asked, as JSON; empty if it is too long.
    question      TEXT    NOT NULL
);
CREATE INDEX refusals_by_scope ON refusals (scope_id, at, request_id);
CREATE INDEX refusals_by_account ON refusals (scope_id, account_id, at, request_id);
CREATE INDEX refusals_by_time ON refusals (at);
