-- What an account did in its own scope is all that is there: only in Teams are entries looked for by who made them.

DROP INDEX audit_log_by_account;
CREATE INDEX audit_log_by_account ON audit_log (scope_id, account_id, number) WHERE account_id <> scope_id;
