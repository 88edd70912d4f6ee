-- What a host asks the host of a node: to serve a session, to end one, or to apply what has changed. The answer is in the same
-- row, and each of the two hosts changes it only as long as the other has not.

CREATE TABLE node_requests (
    id         BLOB NOT NULL PRIMARY KEY,
    host_id    BLOB NOT NULL,
    asked_by   BLOB NOT NULL,
    node_id    BLOB NOT NULL,
    kind       TEXT NOT NULL CHECK (kind IN ('serve', 'end', 'apply')),
    tunnel_id  BLOB,
    session_id BLOB,
    epoch      INTEGER,
    state      TEXT NOT NULL CHECK (state IN ('waiting', 'answered', 'withdrawn')),
    answer     TEXT,
    expires_at INTEGER NOT NULL
) STRICT;
CREATE INDEX node_requests_waiting ON node_requests (host_id) WHERE state = 'waiting';
CREATE INDEX node_requests_by_asker ON node_requests (asked_by);
CREATE INDEX node_requests_expiring ON node_requests (expires_at);
