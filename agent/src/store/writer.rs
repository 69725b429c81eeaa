//! The one writer: a thread with a bounded queue that puts what has gathered into one transaction.
#![forbid(unsafe_code)]

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TryRecvError, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use super::{Record, Retention, Store, StoreError};

/// Messages that may wait.
const QUEUE: usize = 4096;
/// Records of one transaction.
const BATCH: usize = 512;
/// Records kept while the database fails; beyond it the oldest that nobody waits for are dropped and counted.
const BACKLOG: usize = 8192;
/// How long a caller waits for its records to be stored: well inside a hook's own deadline.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long a failing database is left alone before it is tried again.
const AGAIN: Duration = Duration::from_secs(1);

enum Message {
    Records(Vec<Record>, Option<Answer>),
    Flush(Answer),
    Retain(Retention, Answer),
    Clear(Answer),
}

type Answer = SyncSender<Result<(), String>>;

/// How the writer is doing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Health {
    /// Messages in the queue.
    pub queued: u64,
    /// Records that wait because the database fails.
    pub backlog: u64,
    /// Records that were dropped.
    pub dropped: u64,
    /// Records that the database refused by themselves.
    pub refused: u64,
    /// The last failure, while it lasts.
    pub failing: Option<String>,
}

#[derive(Default)]
struct Shared {
    queued: AtomicU64,
    backlog: AtomicU64,
    dropped: AtomicU64,
    refused: AtomicU64,
    failing: Mutex<Option<String>>,
}

/// The handle of the writer thread. Dropping it stores what is queued and ends the thread.
pub struct Writer {
    queue: Option<SyncSender<Message>>,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Writer {
    /// Starts the thread.
    pub fn start(store: Store) -> Result<Writer, StoreError> {
        let (queue, incoming) = sync_channel(QUEUE);
        let shared = Arc::new(Shared::default());
        let for_thread = Arc::clone(&shared);
        let path = store.path().to_owned();
        let body = move || Thread { store, shared: for_thread, backlog: VecDeque::new() }.run(&incoming);
        let thread =
            std::thread::Builder::new().name("store".into()).spawn(body).map_err(|e| StoreError::File(path, e))?;
        Ok(Writer { queue: Some(queue), shared, thread: Some(thread) })
    }

    /// Stores, and returns when it is committed: what is answered afterwards survives the end of the service.
    pub fn durably(&self, records: Vec<Record>) -> Result<(), StoreError> {
        self.ask(|answer| Message::Records(records, Some(answer)))
    }

    /// Stores soon. When the queue is full the records are dropped and counted.
    pub fn eventually(&self, records: Vec<Record>) -> Result<(), StoreError> {
        if records.is_empty() {
            return Ok(());
        }
        let many = records.len() as u64;
        self.send(Message::Records(records, None)).inspect_err(|_| {
            self.shared.dropped.fetch_add(many, Ordering::Relaxed);
        })
    }

    /// Returns when everything before it is stored.
    pub fn flush(&self) -> Result<(), StoreError> {
        self.ask(Message::Flush)
    }

    /// Forgets what is older than that.
    pub fn retain(&self, retention: Retention) -> Result<(), StoreError> {
        self.ask(|answer| Message::Retain(retention, answer))
    }

    /// Forgets everything.
    pub fn clear(&self) -> Result<(), StoreError> {
        self.ask(Message::Clear)
    }

    /// How it is doing.
    pub fn health(&self) -> Health {
        let failing = self.shared.failing.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Health {
            queued: read(&self.shared.queued),
            backlog: read(&self.shared.backlog),
            dropped: read(&self.shared.dropped),
            refused: read(&self.shared.refused),
            failing,
        }
    }

    fn send(&self, message: Message) -> Result<(), StoreError> {
        let queue = self.queue.as_ref().ok_or(StoreError::Queue("the writer has ended"))?;
        self.shared.queued.fetch_add(1, Ordering::Relaxed);
        queue.try_send(message).map_err(|error| {
            self.shared.queued.fetch_sub(1, Ordering::Relaxed);
            match error {
                TrySendError::Full(_) => StoreError::Queue("its queue is full"),
                TrySendError::Disconnected(_) => StoreError::Queue("the writer has ended"),
            }
        })
    }

    fn ask(&self, message: impl FnOnce(Answer) -> Message) -> Result<(), StoreError> {
        let (answer, answered) = sync_channel(1);
        self.send(message(answer))?;
        match answered.recv_timeout(PATIENCE) {
            Ok(result) => result.map_err(StoreError::NotStored),
            Err(RecvTimeoutError::Timeout) => Err(StoreError::Late(PATIENCE)),
            Err(RecvTimeoutError::Disconnected) => Err(StoreError::Queue("the writer has ended")),
        }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        drop(self.queue.take());
        if let Some(thread) = self.thread.take() {
            // A panic in the thread was reported where it happened.
            let _ = thread.join();
        }
    }
}

struct Thread {
    store: Store,
    shared: Arc<Shared>,
    backlog: VecDeque<Record>,
}

impl Thread {
    fn run(mut self, incoming: &Receiver<Message>) {
        loop {
            let first = match self.backlog.is_empty() {
                true => incoming.recv().map_err(|_| RecvTimeoutError::Disconnected),
                false => incoming.recv_timeout(AGAIN),
            };
            let mut next = match first {
                Ok(message) => Some(message),
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => break,
            };
            let mut waiting = Vec::new();
            let mut count = 0;
            // What has gathered meanwhile goes into the same transaction.
            let after = loop {
                let Some(message) = next.take() else { break None };
                self.shared.queued.fetch_sub(1, Ordering::Relaxed);
                match message {
                    Message::Records(records, answer) => {
                        count += records.len();
                        self.backlog.extend(records);
                        waiting.extend(answer);
                    }
                    other => break Some(other),
                }
                if count >= BATCH {
                    break None;
                }
                match incoming.try_recv() {
                    Ok(message) => next = Some(message),
                    Err(TryRecvError::Empty | TryRecvError::Disconnected) => break None,
                }
            };
            let stored = self.store_backlog();
            for answer in waiting {
                // Whoever waited may have given up.
                let _ = answer.send(stored.clone());
            }
            if let Some(message) = after {
                self.other(message, stored);
            }
        }
        let _ = self.store_backlog();
    }

    fn other(&mut self, message: Message, stored: Result<(), String>) {
        let (answer, result) = match message {
            Message::Records(records, answer) => {
                self.backlog.extend(records);
                (answer, stored)
            }
            Message::Flush(answer) => (Some(answer), stored),
            Message::Retain(retention, answer) => {
                let mut result = self.store.forget_old(retention);
                while let Ok(true) = result {
                    result = self.store.forget_old(retention);
                }
                (Some(answer), result.map(drop).map_err(|error| error.to_string()))
            }
            Message::Clear(answer) => {
                self.backlog.clear();
                (Some(answer), self.store.clear().map_err(|error| error.to_string()))
            }
        };
        if let Some(answer) = answer {
            let _ = answer.send(result);
        }
    }

    /// Stores what waits. When the database fails it goes on waiting.
    fn store_backlog(&mut self) -> Result<(), String> {
        let result = self.try_backlog().map_err(|error| error.to_string());
        if result.is_ok() {
            self.backlog.clear();
        }
        while self.backlog.len() > BACKLOG {
            self.backlog.pop_front();
            self.shared.dropped.fetch_add(1, Ordering::Relaxed);
        }
        self.shared.backlog.store(self.backlog.len() as u64, Ordering::Relaxed);
        *self.shared.failing.lock().unwrap_or_else(PoisonError::into_inner) = result.as_ref().err().cloned();
        result
    }

    fn try_backlog(&mut self) -> Result<(), StoreError> {
        if self.backlog.is_empty() {
            return Ok(());
        }
        let mut transaction =
            self.store.connection.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)?;
        for record in &self.backlog {
            // One row that the schema refuses does not take the others with it.
            let savepoint = transaction.savepoint()?;
            match record.write(&savepoint) {
                Ok(()) => savepoint.commit()?,
                Err(StoreError::Database(error))
                    if error.sqlite_error_code() == Some(rusqlite::ErrorCode::ConstraintViolation) =>
                {
                    self.shared.refused.fetch_add(1, Ordering::Relaxed);
                }
                Err(other) => return Err(other),
            }
        }
        transaction.commit()?;
        Ok(())
    }
}
