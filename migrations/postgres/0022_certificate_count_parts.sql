-- The part of a number that a transaction writes is its session's. It was the certificate's, so that two transactions with
-- several certificates each could wait for each other.

-- From here on, what each engine says in its own way.

CREATE FUNCTION add_to_certificate_count(counted TEXT, more BIGINT) RETURNS VOID LANGUAGE sql AS $$
    INSERT INTO certificate_counts (status, part, certificates) VALUES (counted, pg_backend_pid() % 16, more)
        ON CONFLICT (status, part) DO UPDATE SET certificates = certificate_counts.certificates + excluded.certificates;
$$;
CREATE OR REPLACE FUNCTION count_certificate() RETURNS TRIGGER LANGUAGE plpgsql AS $$
BEGIN
    -- Two certificates that change places take the numbers in one order, so that neither waits for the other.
    IF TG_OP = 'UPDATE' AND NEW.status < OLD.status THEN
        PERFORM add_to_certificate_count(NEW.status, 1);
        PERFORM add_to_certificate_count(OLD.status, -1);
        RETURN NULL;
    END IF;
    IF TG_OP IN ('UPDATE', 'DELETE') THEN PERFORM add_to_certificate_count(OLD.status, -1); END IF;
    IF TG_OP IN ('UPDATE', 'INSERT') THEN PERFORM add_to_certificate_count(NEW.status, 1); END IF;
    RETURN NULL;
END;
$$;
DROP FUNCTION add_to_certificate_count(TEXT, UUID, BIGINT);
