-- What nodes are told: assignments by revision, and traffic that is counted once.

-- The number of each node's newest change. Its row is locked by every transaction that changes an assignment,
-- so revisions commit in their order.
CREATE TABLE node_revisions (
    node_id  UUID NOT NULL PRIMARY KEY,
    revision BIGINT NOT NULL,
    -- The highest revision whose change was deleted: a node that holds an older one gets the whole state.
    pruned   BIGINT NOT NULL
);
INSERT INTO node_revisions (node_id, revision, pruned) SELECT id, 1, 0 FROM nodes;

-- The newest change of each tunnel's assignment on a node. Rows outlive their tunnels: a node must hear of the end.
CREATE TABLE assignment_changes (
    node_id    UUID NOT NULL,
    tunnel_id  UUID NOT NULL,
    revision   BIGINT NOT NULL,
    changed_at BIGINT NOT NULL,
    PRIMARY KEY (node_id, tunnel_id)
);

CREATE INDEX assignment_changes_by_revision ON assignment_changes (node_id, revision);
CREATE INDEX assignment_changes_by_time ON assignment_changes (changed_at);

-- The batches of traffic that were added to the counters.
CREATE TABLE traffic_batches (
    node_id    UUID NOT NULL,
    -- The process of the node that counted it.
    boot_id    UUID NOT NULL,
    number     BIGINT NOT NULL,
    applied_at BIGINT NOT NULL,
    PRIMARY KEY (node_id, boot_id, number)
);

CREATE INDEX traffic_batches_by_time ON traffic_batches (applied_at);
CREATE INDEX traffic_batches_by_process ON traffic_batches (node_id, boot_id, applied_at);

-- How the session's agent proves its lease: 0 by a token of an earlier version, which nodes refuse now; 1 by the
-- token of its first grant; 2 by the token of its newest grant.
ALTER TABLE sessions ADD COLUMN token_version BIGINT NOT NULL DEFAULT 0;
-- Whether the connected agent takes the token of a repeated grant.
ALTER TABLE device_presence ADD COLUMN renews_tokens BOOLEAN NOT NULL DEFAULT FALSE;

ALTER TABLE tunnels RENAME COLUMN wanted_on TO desired_device_id;
ALTER TABLE operations RENAME COLUMN yields_id TO handoff_from_device_id;
