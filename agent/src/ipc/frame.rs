//! Length-prefixed frames: a u32 in network order, then that many bytes.
//!
//! A peer has one deadline for a whole frame, never one per read: a byte now and then buys it no more time.
#![forbid(unsafe_code)]

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// Bytes of the length before each frame.
pub const PREFIX_BYTES: usize = 4;

/// Why a frame could not be read or written. After any of these the connection is of no use: close it.
#[derive(Debug, thiserror::Error)]
pub enum FrameError {
    /// Longer than this socket allows; none of it was read or written.
    #[error("a frame of {length} bytes is over this socket's limit of {limit}")]
    TooLarge {
        /// The frame's length, as its prefix says it.
        length: u64,
        /// The limit.
        limit: usize,
    },
    /// A length of 0: there is no such message.
    #[error("a frame of length 0")]
    Empty,
    /// The peer closed in the middle of a frame.
    #[error("the peer closed after {got} of {wanted} bytes")]
    Truncated {
        /// Bytes that came, prefix included.
        got: usize,
        /// Bytes that were announced, prefix included; the prefix's own length if it did not come in whole.
        wanted: usize,
    },
    /// The deadline for the whole frame passed.
    #[error("the peer was too slow: a frame has one deadline for all of it")]
    TimedOut,
    /// The peer is gone: closed between frames, or reset.
    #[error("the peer is gone")]
    Vanished,
    /// Anything else that the operating system says.
    #[error("socket: {0}")]
    Io(#[source] io::Error),
}

impl FrameError {
    pub(super) fn from_io(error: io::Error) -> FrameError {
        use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, NotConnected, TimedOut, WouldBlock};
        match error.kind() {
            // A socket with SO_RCVTIMEO or SO_SNDTIMEO answers EAGAIN when the time is over.
            TimedOut | WouldBlock => FrameError::TimedOut,
            BrokenPipe | ConnectionReset | ConnectionAborted | NotConnected => FrameError::Vanished,
            _ => FrameError::Io(error),
        }
    }
}

/// The length that a prefix announces, if this socket allows it.
fn announced(prefix: [u8; PREFIX_BYTES], max: usize) -> Result<usize, FrameError> {
    let length = u32::from_be_bytes(prefix);
    match usize::try_from(length) {
        Ok(0) => Err(FrameError::Empty),
        Ok(fits) if fits <= max => Ok(fits),
        _ => Err(FrameError::TooLarge { length: u64::from(length), limit: max }),
    }
}

/// The prefix for a body, if this socket allows its length.
fn prefix_of(body: &[u8], max: usize) -> Result<[u8; PREFIX_BYTES], FrameError> {
    if body.is_empty() {
        return Err(FrameError::Empty);
    }
    match u32::try_from(body.len()) {
        Ok(length) if body.len() <= max => Ok(length.to_be_bytes()),
        _ => Err(FrameError::TooLarge { length: body.len() as u64, limit: max }),
    }
}

/// What an end of input means after `got` of `wanted` bytes.
fn ended(got: usize, wanted: usize) -> FrameError {
    if got == 0 { FrameError::Vanished } else { FrameError::Truncated { got, wanted } }
}

/// Reads one frame of at most `max` bytes. Time is bounded by the reader: see [`Timed`].
pub fn read(from: &mut impl Read, max: usize) -> Result<Vec<u8>, FrameError> {
    let mut prefix = [0; PREFIX_BYTES];
    fill(from, &mut prefix, 0, PREFIX_BYTES)?;
    let length = announced(prefix, max)?;
    // Zeroed memory is not resident until it is written, so an announced length alone costs nothing.
    let mut body = vec![0; length];
    fill(from, &mut body, PREFIX_BYTES, PREFIX_BYTES + length)?;
    Ok(body)
}

fn fill(from: &mut impl Read, into: &mut [u8], before: usize, wanted: usize) -> Result<(), FrameError> {
    let mut got = 0;
    while got < into.len() {
        match from.read(&mut into[got..]) {
            Ok(0) => return Err(ended(before + got, wanted)),
            Ok(read) => got += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(FrameError::from_io(error)),
        }
    }
    Ok(())
}

/// Writes one frame of at most `max` bytes. Time is bounded by the writer: see [`Timed`].
pub fn write(to: &mut impl Write, body: &[u8], max: usize) -> Result<(), FrameError> {
    // One buffer and so one write: a peer that polls never wakes for the prefix alone.
    let mut whole = Vec::with_capacity(PREFIX_BYTES + body.len());
    whole.extend_from_slice(&prefix_of(body, max)?);
    whole.extend_from_slice(body);
    to.write_all(&whole).and_then(|()| to.flush()).map_err(FrameError::from_io)
}

/// A blocking socket with one deadline for everything that is read and written through this value.
///
/// The deadline counts CLOCK_MONOTONIC; a suspended machine does not use it up, so a caller with a deadline in
/// CLOCK_BOOTTIME compares that once more after the answer.
#[derive(Debug)]
pub struct Timed<'a> {
    socket: &'a UnixStream,
    until: Instant,
}

impl<'a> Timed<'a> {
    /// Bounds all further traffic on `socket` through this value to `total` from now.
    pub fn new(socket: &'a UnixStream, total: Duration) -> Timed<'a> {
        Timed { socket, until: Instant::now() + total }
    }

    fn remaining(&self) -> io::Result<Duration> {
        match self.until.checked_duration_since(Instant::now()) {
            Some(left) if !left.is_zero() => Ok(left),
            _ => Err(io::ErrorKind::TimedOut.into()),
        }
    }
}

impl Read for Timed<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.socket.set_read_timeout(Some(self.remaining()?))?;
        self.socket.read(into)
    }
}

impl Write for Timed<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.socket.set_write_timeout(Some(self.remaining()?))?;
        self.socket.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.socket.flush()
    }
}

#[cfg(feature = "service")]
pub use asynchronous::{read_async, read_body_async, read_prefix_async, write_async};

#[cfg(feature = "service")]
mod asynchronous {
    //! The same for tokio's sockets.

    use std::time::Duration;

    use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

    use super::{FrameError, PREFIX_BYTES, announced, ended, prefix_of};

    /// Reads one frame of at most `max` bytes; all of it must come within `deadline`.
    pub async fn read_async<R>(from: &mut R, max: usize, deadline: Duration) -> Result<Vec<u8>, FrameError>
    where
        R: AsyncRead + Unpin + ?Sized,
    {
        let whole = async {
            let length = read_prefix_async(from, max).await?;
            body(from, length).await
        };
        tokio::time::timeout(deadline, whole).await.unwrap_or(Err(FrameError::TimedOut))
    }

    /// Waits, for as long as the peer likes, until a frame begins; gives its length once that has come in whole.
    /// For connections that may be idle: the caller then bounds the rest with [`read_body_async`]. A peer that sends
    /// part of a prefix and no more holds nothing but its own connection.
    pub async fn read_prefix_async<R>(from: &mut R, max: usize) -> Result<usize, FrameError>
    where
        R: AsyncRead + Unpin + ?Sized,
    {
        let mut prefix = [0; PREFIX_BYTES];
        fill(from, &mut prefix, 0, PREFIX_BYTES).await?;
        announced(prefix, max)
    }

    /// Reads the body that [`read_prefix_async`] announced, within `deadline`.
    pub async fn read_body_async<R>(from: &mut R, length: usize, deadline: Duration) -> Result<Vec<u8>, FrameError>
    where
        R: AsyncRead + Unpin + ?Sized,
    {
        tokio::time::timeout(deadline, body(from, length)).await.unwrap_or(Err(FrameError::TimedOut))
    }

    async fn body<R>(from: &mut R, length: usize) -> Result<Vec<u8>, FrameError>
    where
        R: AsyncRead + Unpin + ?Sized,
    {
        let mut body = vec![0; length];
        fill(from, &mut body, PREFIX_BYTES, PREFIX_BYTES + length).await?;
        Ok(body)
    }

    async fn fill<R>(from: &mut R, into: &mut [u8], before: usize, wanted: usize) -> Result<(), FrameError>
    where
        R: AsyncRead + Unpin + ?Sized,
    {
        let mut got = 0;
        while got < into.len() {
            match from.read(&mut into[got..]).await {
                Ok(0) => return Err(ended(before + got, wanted)),
                Ok(read) => got += read,
                Err(error) => return Err(FrameError::from_io(error)),
            }
        }
        Ok(())
    }

    /// Writes one frame of at most `max` bytes; the peer must take all of it within `deadline`.
    pub async fn write_async<W>(to: &mut W, body: &[u8], max: usize, deadline: Duration) -> Result<(), FrameError>
    where
        W: AsyncWrite + Unpin + ?Sized,
    {
        let mut whole = Vec::with_capacity(PREFIX_BYTES + body.len());
        whole.extend_from_slice(&prefix_of(body, max)?);
        whole.extend_from_slice(body);
        let sent = async {
            to.write_all(&whole).await?;
            to.flush().await
        };
        match tokio::time::timeout(deadline, sent).await {
            Ok(result) => result.map_err(FrameError::from_io),
            Err(_) => Err(FrameError::TimedOut),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_comes_back_as_it_was_sent() {
        let (mut a, mut b) = UnixStream::pair().unwrap();
        write(&mut a, b"one", 16).unwrap();
        write(&mut a, b"two two", 16).unwrap();
        assert_eq!(read(&mut b, 16).unwrap(), b"one");
        assert_eq!(read(&mut b, 16).unwrap(), b"two two");
    }

    #[test]
    fn a_length_over_the_limit_is_refused_before_anything_is_read() {
        let mut wire: &[u8] = &[0xff, 0xff, 0xff, 0xff, 1, 2, 3];
        let error = read(&mut wire, 1024).unwrap_err();
        assert!(matches!(error, FrameError::TooLarge { length: 0xffff_ffff, limit: 1024 }), "{error}");
        assert_eq!(wire, &[1, 2, 3]);
        let error = write(&mut Vec::new(), &[0; 17], 16).unwrap_err();
        assert!(matches!(error, FrameError::TooLarge { length: 17, limit: 16 }), "{error}");
        assert!(write(&mut Vec::new(), &[0; 16], 16).is_ok());
    }

    #[test]
    fn nothing_is_not_a_message() {
        assert!(matches!(read(&mut [0u8, 0, 0, 0].as_slice(), 16), Err(FrameError::Empty)));
        assert!(matches!(write(&mut Vec::new(), b"", 16), Err(FrameError::Empty)));
    }

    #[test]
    fn an_end_between_frames_is_told_from_one_inside() {
        assert!(matches!(read(&mut [].as_slice(), 16), Err(FrameError::Vanished)));
        assert!(matches!(read(&mut [0u8, 0].as_slice(), 16), Err(FrameError::Truncated { got: 2, wanted: 4 })));
        let wire = [0u8, 0, 0, 9, b'x'];
        assert!(matches!(read(&mut wire.as_slice(), 16), Err(FrameError::Truncated { got: 5, wanted: 13 })));
    }

    #[test]
    fn a_peer_that_dribbles_is_held_to_one_deadline() {
        let (mut slow, here) = UnixStream::pair().unwrap();
        let dribble = std::thread::spawn(move || {
            for byte in [0u8, 0, 0, 200].into_iter().chain([b'x'; 196]) {
                if slow.write_all(&[byte]).is_err() {
                    return;
                }
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        let begun = Instant::now();
        let error = read(&mut Timed::new(&here, Duration::from_millis(150)), 1024).unwrap_err();
        assert!(matches!(error, FrameError::TimedOut), "{error}");
        assert!(begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());
        drop(here);
        dribble.join().unwrap();
    }

    #[test]
    fn a_peer_that_does_not_read_is_held_to_one_deadline() {
        let (here, _never_reads) = UnixStream::pair().unwrap();
        let error = write(&mut Timed::new(&here, Duration::from_millis(100)), &vec![1; 8 << 20], 16 << 20).unwrap_err();
        assert!(matches!(error, FrameError::TimedOut), "{error}");
    }

    #[test]
    fn a_peer_that_is_gone_is_not_an_io_error() {
        let (mut here, gone) = UnixStream::pair().unwrap();
        drop(gone);
        assert!(matches!(write(&mut here, b"x", 16), Err(FrameError::Vanished)));
    }

    #[cfg(feature = "service")]
    #[tokio::test(flavor = "current_thread")]
    async fn the_asynchronous_variants_keep_the_same_rules() {
        use tokio::io::AsyncWriteExt;
        let second = Duration::from_secs(1);
        let (mut a, mut b) = tokio::net::UnixStream::pair().unwrap();
        write_async(&mut a, b"hello", 16, second).await.unwrap();
        assert_eq!(read_async(&mut b, 16, second).await.unwrap(), b"hello");

        a.write_all(&[0, 0, 0, 0]).await.unwrap();
        assert!(matches!(read_async(&mut b, 16, second).await, Err(FrameError::Empty)));
        a.write_all(&[0, 0, 0, 17]).await.unwrap();
        assert!(matches!(read_async(&mut b, 16, second).await, Err(FrameError::TooLarge { length: 17, limit: 16 })));

        a.write_all(&[0, 0, 0, 3, b'x']).await.unwrap();
        let late = read_async(&mut b, 16, Duration::from_millis(50)).await;
        assert!(matches!(late, Err(FrameError::TimedOut)));
        let full = write_async(&mut a, &vec![1; 8 << 20], 16 << 20, Duration::from_millis(50)).await;
        assert!(matches!(full, Err(FrameError::TimedOut)));
        drop(a);
        let (mut a, mut b) = tokio::net::UnixStream::pair().unwrap();
        a.write_all(&[0, 0, 0, 3, b'x']).await.unwrap();
        drop(a);
        let cut = read_async(&mut b, 16, second).await;
        assert!(matches!(cut, Err(FrameError::Truncated { got: 5, wanted: 7 })));
        assert!(matches!(read_async(&mut b, 16, second).await, Err(FrameError::Vanished)));
    }
}
