//! A tokio unix socket that keeps the descriptors which arrive with its bytes.
#![forbid(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, Interest, ReadBuf};
use tokio::net::UnixStream;

use super::frame::{FrameError, PREFIX_BYTES};
use super::peer;

/// Reads a socket; see [`Receiver::take`] for what came beside the bytes.
#[derive(Debug)]
pub struct Receiver<'a> {
    socket: &'a UnixStream,
    received: Vec<OwnedFd>,
}

impl<'a> Receiver<'a> {
    /// Reads `socket`, which nobody else should read from now on.
    pub fn new(socket: &'a UnixStream) -> Receiver<'a> {
        Receiver { socket, received: Vec::new() }
    }

    /// The descriptors that came since the last call, at most [`peer::DESCRIPTORS`]; more were closed.
    pub fn take(&mut self) -> Vec<OwnedFd> {
        std::mem::take(&mut self.received)
    }
}

impl AsyncRead for Receiver<'_> {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let Receiver { socket, received } = &mut *self;
        loop {
            ready!(socket.poll_read_ready(context))?;
            let unfilled = into.initialize_unfilled();
            match socket.try_io(Interest::READABLE, || peer::receive(socket.as_fd(), unfilled, received)) {
                Ok(read) => {
                    received.truncate(peer::DESCRIPTORS);
                    into.advance(read);
                    return Poll::Ready(Ok(()));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }
}

/// Writes one frame with descriptors beside its first byte. The frame must fit the socket's buffer (a small one does).
pub async fn write_with(socket: &UnixStream, body: &[u8], passed: &[BorrowedFd<'_>]) -> Result<(), FrameError> {
    let length = u32::try_from(body.len())
        .map_err(|_| FrameError::TooLarge { length: body.len() as u64, limit: u32::MAX as usize })?;
    let mut whole = Vec::with_capacity(PREFIX_BYTES + body.len());
    whole.extend_from_slice(&length.to_be_bytes());
    whole.extend_from_slice(body);
    let mut sent = 0;
    while sent < whole.len() {
        let descriptors: &[BorrowedFd<'_>] = if sent == 0 { passed } else { &[] };
        sent += socket
            .async_io(Interest::WRITABLE, || peer::send(socket.as_fd(), &whole[sent..], descriptors))
            .await
            .map_err(FrameError::from_io)?;
    }
    Ok(())
}
