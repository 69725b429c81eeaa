//! One user's observations, from the kernel's ring buffers to the one subscriber of that user.
//!
//! Nothing is read from the rings while nobody takes it: they fill, and the kernel counts what no longer fits. So a
//! subscriber that is slow loses observations, never silently, and costs the probe a bounded amount of memory.
#![forbid(unsafe_code)]

use std::os::fd::BorrowedFd;
use std::rc::Rc;
use std::time::Duration;

use tokio::io::AsyncReadExt;
use tokio::net::unix::OwnedWriteHalf;

use super::backend::{Backend, BackendError, Source};
use super::frames;
use super::protocol::{Refusal, Response};
use super::server::{Shared, answer, unmarked};
use crate::ipc::descriptors::Receiver;
use crate::ipc::frame;
use crate::ipc::limits::FRAME_BYTES;
use crate::ipc::peer::{self, Peer};

/// Most observations that are taken from the rings at once.
const BATCH: usize = 1024;
/// The rings are looked at this often even if no wake-up comes.
const LOOK_AT_LEAST: Duration = Duration::from_millis(250);

/// The stream of a uid, while somebody has it.
struct Subscription<B: Backend> {
    shared: Rc<Shared<B>>,
    uid: u32,
}

impl<B: Backend> Subscription<B> {
    fn take(shared: &Rc<Shared<B>>, peer: &Peer) -> Result<Subscription<B>, BackendError> {
        let mut accounts = shared.accounts.borrow_mut();
        let account = accounts.entry(peer.uid).or_default();
        if let Some(other) = account.subscriber {
            let reason = format!("process {} has this user's stream already", other.pid);
            return Err(BackendError { kind: Refusal::Limit, reason });
        }
        account.subscriber = Some(peer.process);
        Ok(Subscription { shared: shared.clone(), uid: peer.uid })
    }

    /// The oldest frame that was not delivered. It stays until it was.
    fn next_frame(&self) -> Option<Vec<u8>> {
        self.shared.accounts.borrow().get(&self.uid)?.undelivered.front().cloned()
    }

    fn delivered(&self) {
        if let Some(account) = self.shared.accounts.borrow_mut().get_mut(&self.uid) {
            account.undelivered.pop_front();
        }
    }

    fn keep(&self, bodies: Vec<Vec<u8>>) {
        self.shared.accounts.borrow_mut().entry(self.uid).or_default().undelivered.extend(bodies);
    }
}

impl<B: Backend> Drop for Subscription<B> {
    fn drop(&mut self) {
        if let Some(account) = self.shared.accounts.borrow_mut().get_mut(&self.uid) {
            account.subscriber = None;
        }
    }
}

/// Streams until the subscriber is gone, does not take a frame in time, says anything, or becomes marked.
pub(super) async fn serve<B: Backend>(
    shared: &Rc<Shared<B>>,
    peer: &Peer,
    writer: &mut OwnedWriteHalf,
    reader: &mut Receiver<'_>,
) {
    let begun = Subscription::take(shared, peer).and_then(|subscription| {
        let rings = shared.backend.borrow_mut().rings(peer.uid)?;
        let [refusals, rest] = rings.fds();
        let cannot_poll =
            |error| BackendError { kind: Refusal::Unavailable, reason: format!("the rings cannot be polled: {error}") };
        let waker = |fd: BorrowedFd<'_>| fd.try_clone_to_owned().and_then(peer::awaitable).map_err(cannot_poll);
        let wakers = (waker(refusals)?, waker(rest)?);
        Ok((subscription, rings, wakers))
    });
    let (subscription, mut rings, (refusals, rest)) = match begun {
        Ok(begun) => begun,
        Err(error) => {
            let _ = answer(writer, &error.into(), shared.options.peer_patience).await;
            return;
        }
    };
    if answer(writer, &Response::Done, shared.options.peer_patience).await.is_err() {
        return;
    }
    loop {
        while let Some(body) = subscription.next_frame() {
            if unmarked(shared, peer).is_err() {
                return;
            }
            let patience = shared.options.subscriber_patience;
            if frame::write_async(writer, &body, FRAME_BYTES, patience).await.is_err() {
                return;
            }
            subscription.delivered();
        }
        let mut batch = Vec::new();
        if rings.drain(BATCH, &mut |observation| batch.push(observation)) > 0 {
            let (bodies, _left_out) = frames::encode_observations(batch);
            subscription.keep(bodies);
            // A flood of one user must not keep the others from their turn.
            tokio::task::yield_now().await;
            continue;
        }
        let mut unexpected = [0; 1];
        tokio::select! {
            // The end of the connection; or a request, which has no place on a stream.
            _ = reader.read(&mut unexpected) => return,
            ready = refusals.readable() => if let Ok(mut ready) = ready { ready.clear_ready() },
            ready = rest.readable() => if let Ok(mut ready) = ready { ready.clear_ready() },
            () = tokio::time::sleep(LOOK_AT_LEAST) => {}
        }
    }
}
