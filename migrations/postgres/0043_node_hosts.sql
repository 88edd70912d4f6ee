-- The host that runs a node. Null: none does, or none has since this column is there.

ALTER TABLE nodes ADD COLUMN host_id UUID;
