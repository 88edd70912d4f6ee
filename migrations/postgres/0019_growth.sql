-- Reads and changes whose cost does not depend on how much there is.

-- The tunnels on each node, kept by triggers. A node's number is the sum of its parts: on PostgreSQL, creations at
-- the same time seldom wait for one part.
CREATE TABLE node_loads (
    node_id UUID    NOT NULL,
    part    BIGINT  NOT NULL,
    tunnels BIGINT  NOT NULL,
    PRIMARY KEY (node_id, part)
);
INSERT INTO node_loads (node_id, part, tunnels) SELECT node_id, 0, COUNT(*) FROM tunnels GROUP BY node_id;

-- The sum of `usage_days` over the tunnels of each scope.
CREATE TABLE usage_of_scopes (
    scope_id  UUID    NOT NULL REFERENCES scopes (id),
    day       BIGINT  NOT NULL,
    bytes_in  BIGINT  NOT NULL,
    bytes_out BIGINT  NOT NULL,
    PRIMARY KEY (scope_id, day)
);
CREATE INDEX usage_of_scopes_by_day ON usage_of_scopes (day);
INSERT INTO usage_of_scopes (scope_id, day, bytes_in, bytes_out)
    SELECT scope_id, day, SUM(bytes_in), SUM(bytes_out) FROM usage_days GROUP BY scope_id, day;
DROP INDEX usage_days_by_scope;

-- When an operation that has not ended has to have gone on; NULL for one that has ended.
ALTER TABLE operations ADD COLUMN due_at BIGINT;
UPDATE operations SET due_at = CASE status WHEN 'queued' THEN expires_at
    ELSE COALESCE(claimed_at, created_at) + CASE action WHEN 'restart_agent' THEN 180000000 ELSE 120000000 END END
    WHERE status IN ('queued', 'claimed', 'running');
CREATE INDEX operations_due ON operations (due_at) WHERE due_at IS NOT NULL;
CREATE INDEX operations_queued ON operations (device_id) WHERE status = 'queued';
CREATE INDEX operations_queued_by_account ON operations (scope_id, account_id) WHERE status = 'queued';
CREATE INDEX operations_handoffs ON operations (handoff_from_device_id)
    WHERE handoff_from_device_id IS NOT NULL AND status IN ('queued', 'claimed', 'running');

CREATE INDEX sessions_due ON sessions (lease_until) WHERE ended_at IS NULL;
CREATE INDEX sessions_open_by_scope ON sessions (scope_id) WHERE ended_at IS NULL;
CREATE INDEX sessions_by_tunnel_and_device ON sessions (tunnel_id, device_id, started_at, id);
CREATE INDEX tunnels_by_name ON tunnels (scope_id, name);
CREATE INDEX device_codes_by_expiry ON device_codes (expires_at);

-- From here on, what each engine says in its own way.

CREATE FUNCTION add_to_node_load(node UUID, tunnel UUID, more BIGINT) RETURNS VOID LANGUAGE sql AS $$
    INSERT INTO node_loads (node_id, part, tunnels) VALUES (node, get_byte(uuid_send(tunnel), 15) % 16, more)
        ON CONFLICT (node_id, part) DO UPDATE SET tunnels = node_loads.tunnels + excluded.tunnels;
$$;
CREATE FUNCTION count_tunnel() RETURNS TRIGGER LANGUAGE plpgsql AS $$
BEGIN
    -- Two tunnels that change places take the nodes in one order, so that neither waits for the other.
    IF TG_OP = 'UPDATE' AND NEW.node_id < OLD.node_id THEN
        PERFORM add_to_node_load(NEW.node_id, NEW.id, 1);
        PERFORM add_to_node_load(OLD.node_id, OLD.id, -1);
        RETURN NULL;
    END IF;
    IF TG_OP IN ('UPDATE', 'DELETE') THEN PERFORM add_to_node_load(OLD.node_id, OLD.id, -1); END IF;
    IF TG_OP IN ('UPDATE', 'INSERT') THEN PERFORM add_to_node_load(NEW.node_id, NEW.id, 1); END IF;
    RETURN NULL;
END;
$$;
CREATE TRIGGER tunnels_counted AFTER INSERT OR DELETE ON tunnels FOR EACH ROW EXECUTE FUNCTION count_tunnel();
CREATE TRIGGER tunnels_moved AFTER UPDATE OF node_id ON tunnels FOR EACH ROW
    WHEN (NEW.node_id <> OLD.node_id) EXECUTE FUNCTION count_tunnel();

-- Room for new versions of rows that change all the time, so that they stay in their pages.
ALTER TABLE scopes SET (fillfactor = 80);
ALTER TABLE device_presence SET (fillfactor = 80);
ALTER TABLE rate_windows SET (fillfactor = 80);
ALTER TABLE sessions SET (fillfactor = 80);
ALTER TABLE node_loads SET (fillfactor = 50);
ALTER TABLE node_revisions SET (fillfactor = 50);
ALTER TABLE webhooks SET (fillfactor = 80);
ALTER TABLE usage_days SET (fillfactor = 80);
ALTER TABLE usage_of_scopes SET (fillfactor = 80);
