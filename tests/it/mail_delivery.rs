//! Mail of the real program: over TLS, and when it is killed before a mail is taken.

use culvert_test_macros::both_engines;
use tokio::net::TcpListener;

use crate::mail::{MailServer, link};
use crate::support::database::{count, execute_script};
use crate::support::host::{Engine, within};
use crate::support::program::Place;
use crate::support::tab::{Shown, Tab};

const ASK: &str = "/dashboard/sign-in/link";

/// A place whose host sends mail.
async fn place(engine: Engine, smtp_url: &str) -> Place {
    let place = Place::new(engine).await.set("CULVERT_MAIL__FROM", "culvert@example.test");
    place.set("CULVERT_MAIL__SMTP_URL", smtp_url)
}

/// Asks for a link to an account, as somebody who cannot sign in.
async fn ask(place: &Place) -> Shown {
    let mut tab = Tab::at(place.url(), "http://localhost:8080".into());
    let page = tab.get(ASK).await;
    tab.submit(&page, ASK, &[("email", "ada@example.com")]).await
}

/// A mail is written with its link, so it outlives the host that has not sent it.
#[both_engines]
async fn mail_outlives_a_host_that_is_killed_before_it_is_sent(engine: Engine) {
    // A server that takes connections and says nothing.
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let place = place(engine, &format!("smtp://{}", silent.local_addr().unwrap())).await;
    let host = place.serve().await;
    place.json("culvert account create --email ada@example.com --name Ada").await;
    assert_eq!(ask(&place).await.status, 200);
    let connection = within(30, silent.accept()).await.unwrap();
    host.kill().await;
    drop(connection);
    assert_eq!(count(&place.database_url(), "mails").await, 1);
    // Three minutes pass, for which it belonged to the host that was killed.
    execute_script(&place.database_url(), "UPDATE mails SET due_at = due_at - 180000000;").await;

    let mut server = MailServer::start(&[]).await;
    let place = place.set("CULVERT_MAIL__SMTP_URL", &format!("smtp://127.0.0.1:{}", server.port));
    let host = place.serve().await;
    let mail = server.next().await;
    assert_eq!(mail["to"][0], "ada@example.com");
    let mut tab = Tab::at(place.url(), "http://localhost:8080".into());
    let page = tab.get("/dashboard/enter").await;
    assert_eq!(tab.submit(&page, "/dashboard/enter", &[("link", &link(&mail))]).await.led_to(), "/dashboard/account");
    assert_eq!(host.interrupt().await, Some(0));
}

/// Mail goes over TLS from the first byte or after STARTTLS, to a server whose certificate an authority of this machine has issued.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mail_goes_over_tls_to_a_server_that_is_known() {
    let place = Place::new(Engine::Sqlite).await;
    place
        .shell(
            "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -keyout ca.key -out ca.pem -subj /CN=ca 2>&1 \\
             && openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout mail.key -out mail.csr -subj /CN=localhost 2>&1 \\
             && printf 'subjectAltName=DNS:localhost' > names \\
             && openssl x509 -req -in mail.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -extfile names -out mail.pem 2>&1",
        )
        .await;
    let file = |name: &str| place.folder.path().join(name).display().to_string();
    let (certificate, key, authority) = (file("mail.pem"), file("mail.key"), file("ca.pem"));
    for (mode, scheme, query) in [("--tls", "smtps", ""), ("--starttls", "smtp", "?tls=required")] {
        let mut server = MailServer::start(&[mode, &certificate, &key]).await;
        let url = format!("{scheme}://localhost:{}{query}", server.port);
        for is_known in [false, true] {
            let place = self::place(Engine::Sqlite, &url).await;
            let place = if is_known { place.set("SSL_CERT_FILE", &authority) } else { place };
            let mut host = place.serve().await;
            place.json("culvert account create --email ada@example.com --name Ada").await;
            assert_eq!(ask(&place).await.status, 200);
            if is_known {
                let mail = server.next().await;
                assert_eq!((&mail["to"][0], &mail["tls"]), (&"ada@example.com".into(), &true.into()), "{mode}");
            } else {
                host.until("a mail could not be sent; it is tried again").await;
            }
            assert_eq!(host.interrupt().await, Some(0));
        }
    }
}
