-- The hosts on this database, and which of them leads. Times are the database's.

CREATE TABLE hosts (
    id            UUID    NOT NULL PRIMARY KEY,
    -- The process that is the host now. A former one of the same folder is refused.
    process_id    UUID    NOT NULL,
    name          TEXT    NOT NULL,
    version       TEXT    NOT NULL,
    -- Of the lock on its folder: whoever holds that lock knows that the former process is gone.
    lock_identity BYTEA   NOT NULL,
    started_at    BIGINT  NOT NULL,
    lease_until   BIGINT  NOT NULL,
    ended_at      BIGINT
);
CREATE INDEX hosts_alive ON hosts (lease_until) WHERE ended_at IS NULL;

CREATE TABLE cluster (
    id               BIGINT   NOT NULL PRIMARY KEY CHECK (id = 1),
    leader_id        UUID,
    leader_term      BIGINT   NOT NULL,
    leader_until     BIGINT   NOT NULL,
    leader_ends_from BIGINT   NOT NULL,
    -- The newest heartbeat of any host. None came yet where it is null.
    alive_at         BIGINT,
    -- Until then nothing is ended for its silence.
    grace_until      BIGINT   NOT NULL
);
INSERT INTO cluster (id, leader_id, leader_term, leader_until, leader_ends_from, alive_at, grace_until)
    VALUES (1, NULL, 0, 0, 0, NULL, 0);

CREATE INDEX device_presence_by_host ON device_presence (host_id) WHERE host_id IS NOT NULL;
