-- Where remote control may lead a device, by its owner.

-- A JSON list, as the device signed it with its consent; NULL where its agent has not told.
ALTER TABLE devices ADD COLUMN allowed_targets TEXT;
