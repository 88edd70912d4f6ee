-- How a node speaks to the service of an http tunnel.

-- The Host header of requests; NULL for the visitor's own.
ALTER TABLE tunnels ADD COLUMN host_header TEXT;
-- `auto`, `http` or `h2c`.
ALTER TABLE tunnels ADD COLUMN local_scheme TEXT NOT NULL DEFAULT 'auto';
