-- What commands on the server have done, newest first: open pages of operators hear of it.

CREATE INDEX audit_log_of_commands ON audit_log (at) WHERE origin = 'cli';
