//! The network between an agent and its host, which a test can cut and mend.

use std::net::SocketAddr;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use super::host::TestHost;

/// A way to the host on which nothing passes while it is cut: no byte, and no word that the other
/// side has gone.
pub struct Cable {
    pub url: String,
    state: watch::Sender<State>,
}

#[derive(Clone, Copy)]
struct State {
    intact: bool,
    /// How often it was cut.
    cuts: u32,
}

impl TestHost {
    pub async fn cable(&self) -> Cable {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let (host, sender) = (self.address, watch::Sender::new(State { intact: true, cuts: 0 }));
        let state = sender.subscribe();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(carry(stream, host, state.clone()));
            }
        });
        Cable { url, state: sender }
    }
}

impl Cable {
    pub fn cut(&self) {
        self.state.send_modify(|state| *state = State { intact: false, cuts: state.cuts + 1 });
    }

    /// From here on new connections pass. Those that were cut are lost.
    pub fn mend(&self) {
        self.state.send_modify(|state| state.intact = true);
    }
}

async fn carry(mut near: TcpStream, host: SocketAddr, mut state: watch::Receiver<State>) {
    let State { intact, cuts } = *state.borrow_and_update();
    let mut far = TcpStream::connect(host).await.unwrap();
    if intact {
        tokio::select! {
            biased;
            _ = state.wait_for(|state| state.cuts != cuts) => {}
            _ = tokio::io::copy_bidirectional(&mut near, &mut far) => return,
        }
    }
    // Both ends stay open, and hear nothing, until the cable is mended.
    let _ = state.wait_for(|state| state.intact).await;
}
