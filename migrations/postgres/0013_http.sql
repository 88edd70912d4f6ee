-- Where a node's http tunnels are reached.

-- The domain whose subdomains its tunnels get. Without one, it takes no http tunnels.
ALTER TABLE nodes ADD COLUMN domain_id UUID REFERENCES platform_domains (id);
-- The port that visitors see; NULL where the node has no HTTP listener.
ALTER TABLE nodes ADD COLUMN http_port BIGINT;
CREATE UNIQUE INDEX nodes_domain ON nodes (domain_id);
CREATE INDEX tunnels_by_node_with_name ON tunnels (node_id, id) WHERE protocol = 'http';
