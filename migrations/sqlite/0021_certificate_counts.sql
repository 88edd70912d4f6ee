-- How many certificates have each status, kept by triggers. A number is the sum of its parts, as in `node_loads`.
CREATE TABLE certificate_counts (
    status       TEXT   NOT NULL,
    part         INTEGER NOT NULL,
    certificates INTEGER NOT NULL,
    PRIMARY KEY (status, part)
) STRICT;
INSERT INTO certificate_counts (status, part, certificates) SELECT status, 0, COUNT(*) FROM certificates GROUP BY status;
DROP INDEX certificates_by_status;

-- From here on, what each engine says in its own way.

CREATE TRIGGER certificates_inserted AFTER INSERT ON certificates BEGIN
    INSERT INTO certificate_counts (status, part, certificates) VALUES (NEW.status, 0, 1)
        ON CONFLICT (status, part) DO UPDATE SET certificates = certificate_counts.certificates + 1;
END;
CREATE TRIGGER certificates_deleted AFTER DELETE ON certificates BEGIN
    UPDATE certificate_counts SET certificates = certificates - 1 WHERE status = OLD.status AND part = 0;
END;
CREATE TRIGGER certificates_changed AFTER UPDATE OF status ON certificates WHEN NEW.status <> OLD.status BEGIN
    UPDATE certificate_counts SET certificates = certificates - 1 WHERE status = OLD.status AND part = 0;
    INSERT INTO certificate_counts (status, part, certificates) VALUES (NEW.status, 0, 1)
        ON CONFLICT (status, part) DO UPDATE SET certificates = certificate_counts.certificates + 1;
END;
