-- Keys that were revoked or have expired are deleted after their retention, with the counts of their requests.

CREATE INDEX api_keys_by_revocation ON api_keys (revoked_at) WHERE revoked_at IS NOT NULL;
CREATE INDEX api_keys_by_expiry ON api_keys (expires_at) WHERE expires_at IS NOT NULL;

ALTER TABLE rate_windows RENAME TO rate_windows_before;
CREATE TABLE rate_windows (
    api_key_id   BLOB    NOT NULL PRIMARY KEY REFERENCES api_keys (id) ON DELETE CASCADE,
    minute_start INTEGER NOT NULL,
    minute_count INTEGER NOT NULL,
    day_start    INTEGER NOT NULL,
    day_count    INTEGER NOT NULL
) STRICT;
INSERT INTO rate_windows SELECT api_key_id, minute_start, minute_count, day_start, day_count FROM rate_windows_before;
DROP TABLE rate_windows_before;
