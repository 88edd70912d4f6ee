-- How many certificates have each status, kept by triggers. A number is the sum of its parts, as in `node_loads`.
CREATE TABLE certificate_counts (
    status       TEXT   NOT NULL,
    part         BIGINT NOT NULL,
    certificates BIGINT NOT NULL,
    PRIMARY KEY (status, part)
);
INSERT INTO certificate_counts (status, part, certificates) SELECT status, 0, COUNT(*) FROM certificates GROUP BY status;
DROP INDEX certificates_by_status;

-- From here on, what each engine says in its own way.

CREATE FUNCTION add_to_certificate_count(counted TEXT, certificate UUID, more BIGINT) RETURNS VOID LANGUAGE sql AS $$
    INSERT INTO certificate_counts (status, part, certificates)
        VALUES (counted, get_byte(uuid_send(certificate), 15) % 16, more)
        ON CONFLICT (status, part) DO UPDATE SET certificates = certificate_counts.certificates + excluded.certificates;
$$;
CREATE FUNCTION count_certificate() RETURNS TRIGGER LANGUAGE plpgsql AS $$
BEGIN
    -- Two certificates that change places take the numbers in one order, so that neither waits for the other.
    IF TG_OP = 'UPDATE' AND NEW.status < OLD.status THEN
        PERFORM add_to_certificate_count(NEW.status, NEW.id, 1);
        PERFORM add_to_certificate_count(OLD.status, OLD.id, -1);
        RETURN NULL;
    END IF;
    IF TG_OP IN ('UPDATE', 'DELETE') THEN PERFORM add_to_certificate_count(OLD.status, OLD.id, -1); END IF;
    IF TG_OP IN ('UPDATE', 'INSERT') THEN PERFORM add_to_certificate_count(NEW.status, NEW.id, 1); END IF;
    RETURN NULL;
END;
$$;
CREATE TRIGGER certificates_counted AFTER INSERT OR DELETE ON certificates
    FOR EACH ROW EXECUTE FUNCTION count_certificate();
CREATE TRIGGER certificates_changed AFTER UPDATE OF status ON certificates FOR EACH ROW
    WHEN (NEW.status <> OLD.status) EXECUTE FUNCTION count_certificate();
ALTER TABLE certificate_counts SET (fillfactor = 50);
