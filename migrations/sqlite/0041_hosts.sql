-- The hosts on this database, and which of them leads. Times are the database's.

CREATE TABLE hosts (
    id            BLOB    NOT NULL PRIMARY KEY,
    -- The process that is the host now. A former one of the same folder is refused.
    process_id    BLOB    NOT NULL,
    name          TEXT    NOT NULL,
    version       TEXT    NOT NULL,
    -- Of the lock on its folder: whoever holds that lock knows that the former process is gone.
    lock_identity BLOB    NOT NULL,
    started_at    INTEGER NOT NULL,
    lease_until   INTEGER NOT NULL,
    ended_at      INTEGER
) STRICT;
CREATE INDEX hosts_alive ON hosts (lease_until) WHERE ended_at IS NULL;

CREATE TABLE cluster (
    id               INTEGER  NOT NULL PRIMARY KEY CHECK (id = 1),
    leader_id        BLOB,
    leader_term      INTEGER  NOT NULL,
    leader_until     INTEGER  NOT NULL,
    leader_ends_from INTEGER  NOT NULL,
    -- The newest heartbeat of any host. None came yet where it is null.
    alive_at         INTEGER,
    -- Until then nothing is ended for its silence.
    grace_until      INTEGER  NOT NULL
) STRICT;
INSERT INTO cluster (id, leader_id, leader_term, leader_until, leader_ends_from, alive_at, grace_until)
    VALUES (1, NULL, 0, 0, 0, NULL, 0);

CREATE INDEX device_presence_by_host ON device_presence (host_id) WHERE host_id IS NOT NULL;
