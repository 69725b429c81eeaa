//! Which commands send data to somewhere else, what data, and where to.
#![forbid(unsafe_code)]

use super::places;
use crate::policy::shell::{Command, Field, Options, Source, Sources};

/// Data that leaves.
#[derive(Debug, Default)]
pub(super) struct Transfer {
    /// Host, bucket or address, as it was written.
    pub(super) to: String,
    /// It stays on this machine.
    pub(super) local: bool,
    /// What is sent as content.
    pub(super) data: Sources,
    /// What is sent to log in: headers, users. A variable there is what it is for; a file's content is not.
    pub(super) login: Sources,
    /// Files or streams are sent, not only words of the command line.
    pub(super) bulk: bool,
}

/// What the command sends; `None` for one that sends nothing.
pub(super) fn of(command: &Command) -> Option<Transfer> {
    if command.remote || command.wrapper && !matches!(command.program.as_str(), "ssh" | "mosh") {
        return None;
    }
    let mut transfer = match command.program.as_str() {
        "curl" | "xh" | "http" | "https" => curl(command),
        "wget" => wget(command),
        "nc" | "ncat" | "netcat" | "telnet" | "socat" | "openssl" => socket(command)?,
        "scp" | "rsync" | "sftp" | "rcp" => copy(command)?,
        "ssh" | "mosh" => {
            let options = Options::read(command.args(), crate::policy::shell::SSH_VALUED, true);
            let to = options.operands.first().map(|field| field.text.clone())?;
            let sources = options.operands.iter().skip(1).flat_map(|field| field.sources.clone());
            let bulk = has_content(&command.stdin.sources);
            Transfer {
                local: places::is_local_host(&to),
                to,
                data: sources.chain(command.stdin.sources.iter().cloned()).collect(),
                bulk,
                ..Transfer::default()
            }
        }
        "aws" | "gsutil" | "gcloud" | "rclone" | "az" | "s3cmd" | "mc" | "b2" | "azcopy" => bucket(command)?,
        "dig" | "host" | "nslookup" | "ping" | "drill" | "getent" | "traceroute" | "whois" => {
            let to = command.texts().find(|text| text.contains('.')).unwrap_or("").to_owned();
            Transfer { local: places::is_local_host(&to), to, data: command.argument_sources(), ..Transfer::default() }
        }
        "mail" | "mailx" | "mutt" | "sendmail" | "msmtp" | "swaks" | "ftp" | "lftp" | "tftp" | "curlftpfs"
        | "pastebinit" | "croc" | "wormhole" | "magic-wormhole" | "termbin" | "ffsend" | "transfer" => {
            let to = command.texts().find(|text| text.contains(['@', '.'])).unwrap_or("").to_owned();
            everything(command, to)
        }
        "gh" if command.has("gist") || command.has("upload") => everything(command, "github.com".into()),
        "git" if command.has("push") => {
            let to = command
                .texts()
                .skip_while(|text| *text != "push")
                .skip(1)
                .find(|text| !text.starts_with('-'))
                .unwrap_or("origin");
            Transfer {
                local: to.starts_with(['/', '.']),
                to: to.to_owned(),
                data: command.reads.iter().cloned().chain(command.argument_sources()).collect(),
                ..Transfer::default()
            }
        }
        _ => return None,
    };
    if transfer.to.is_empty() {
        transfer.local = false;
    }
    Some(transfer)
}

/// Whether the sources are more than words: files, an environment, something fetched or unknown.
fn has_content(sources: &Sources) -> bool {
    sources.iter().any(|source| matches!(source, Source::File(_) | Source::Environment))
}

fn everything(command: &Command, to: String) -> Transfer {
    let data: Sources =
        command.reads.iter().chain(&command.stdin.sources).cloned().chain(command.argument_sources()).collect();
    Transfer { local: places::is_local_host(&to), to, bulk: has_content(&data), data, ..Transfer::default() }
}

fn at_file(command: &Command, text: &str, sources: &mut Sources) -> bool {
    let Some(at) = text.find('@') else { return false };
    let file = text[at + 1..].split(';').next().unwrap_or("");
    if file.is_empty() {
        return false;
    }
    if file == "-" {
        sources.extend(command.stdin.sources.iter().cloned());
    } else {
        sources.insert(Source::File(command.path(file)));
        // What the action put into the file counts as read.
        sources.extend(command.reads.iter().cloned());
    }
    true
}

fn curl(command: &Command) -> Transfer {
    let valued = "o output H header X request A user-agent u user e referer m max-time x proxy w write-out c cookie-jar b cookie connect-timeout retry cacert cert key \
                  unix-socket K config T upload-file F form d data data-binary data-raw data-urlencode data-ascii json form-string url r range E resolve oauth2-bearer";
    let options = Options::read(command.args(), valued, false);
    let url = options.value(&["--url"]).or(options
        .operands
        .iter()
        .copied()
        .find(|field| field.text.contains("://"))
        .or(options.operands.first().copied()));
    let to = url.map(|field| places::host_of(&field.text).to_owned()).unwrap_or_default();
    let mut transfer =
        Transfer { local: places::is_local_host(&to) || options.has(&["--unix-socket"]), to, ..Transfer::default() };
    for field in &options.operands {
        transfer.data.extend(field.sources.iter().cloned());
        // httpie: `name@file`, `name=value`.
        if command.program != "curl" && field.text.contains('@') && !field.text.contains("://") {
            transfer.bulk |= at_file(command, &field.text, &mut transfer.data);
        }
    }
    for field in options.values(&["-T", "--upload-file"]) {
        transfer.bulk = true;
        if matches!(field.text.as_str(), "-" | ".") {
            transfer.data.extend(command.stdin.sources.iter().cloned());
        } else {
            transfer.data.insert(Source::File(command.path(&field.text)));
            transfer.data.extend(field.sources.iter().cloned().chain(command.reads.iter().cloned()));
        }
    }
    for field in
        options.values(&["-d", "--data", "--data-binary", "--data-ascii", "--json", "--data-urlencode", "-F", "--form"])
    {
        transfer.data.extend(field.sources.iter().cloned());
        let form = field.text.split_once('=').map_or(field.text.as_str(), |(_, value)| value);
        let from_file = field.text.starts_with('@')
            || form.starts_with(['@', '<'])
            || options.has(&["--data-urlencode"]) && field.text.contains('@');
        if from_file {
            let text = if form.starts_with('<') {
                form.replacen('<', "@", 1)
            } else if field.text.starts_with('@') {
                field.text.clone()
            } else {
                form.to_owned()
            };
            transfer.bulk |= at_file(command, &text, &mut transfer.data);
        }
    }
    for field in
        options.values(&["--data-raw", "--form-string", "-b", "--cookie", "-A", "--user-agent", "-e", "--referer"])
    {
        transfer.data.extend(field.sources.iter().cloned());
    }
    for field in options.values(&["-H", "--header", "-u", "--user", "--oauth2-bearer"]) {
        let name = field.text.split(':').next().unwrap_or("").to_ascii_lowercase();
        let is_login =
            ["authorization", "x-api-key", "private-token", "x-auth-token", "api-key", "x-vault-token", "apikey"]
                .contains(&name.trim())
                || !field.text.contains(':')
                || options.has(&["-u", "--user"]);
        (if is_login { &mut transfer.login } else { &mut transfer.data }).extend(field.sources.iter().cloned());
    }
    // httpie sends its standard input.
    if command.program != "curl" {
        transfer.data.extend(command.stdin.sources.iter().cloned());
    }
    transfer
}

fn wget(command: &Command) -> Transfer {
    let options = Options::read(
        command.args(),
        "O P o a U e t T w header output-document directory-prefix user-agent post-file post-data body-file body-data method",
        false,
    );
    let url = options.operands.iter().find(|field| field.text.contains("://")).or(options.operands.first());
    let to = url.map(|field| places::host_of(&field.text).to_owned()).unwrap_or_default();
    let mut transfer = Transfer { local: places::is_local_host(&to), to, ..Transfer::default() };
    transfer.data.extend(options.operands.iter().flat_map(|field| field.sources.clone()));
    for field in options.values(&["--post-file", "--body-file"]) {
        transfer.bulk = true;
        transfer.data.insert(Source::File(command.path(&field.text)));
        transfer.data.extend(command.reads.iter().cloned());
    }
    transfer.data.extend(options.values(&["--post-data", "--body-data"]).flat_map(|field| field.sources.clone()));
    transfer.login.extend(options.values(&["--header"]).flat_map(|field| field.sources.clone()));
    transfer
}

fn socket(command: &Command) -> Option<Transfer> {
    if command.program == "openssl" && !command.has("s_client") {
        return None;
    }
    if matches!(command.program.as_str(), "nc" | "ncat" | "netcat")
        && command.texts().any(|text| text.starts_with('-') && !text.starts_with("--") && text.contains(['l', 'z']))
    {
        return None;
    }
    let to = match command.program.as_str() {
        "socat" => command
            .texts()
            .find_map(|text| {
                text.to_ascii_lowercase()
                    .starts_with("tcp")
                    .then(|| text.split_once(':').map_or("", |(_, to)| to).to_owned())
            })
            .unwrap_or_default(),
        "openssl" => Options::read(command.args(), "connect", false)
            .value(&["-connect"])
            .map(|field| field.text.clone())
            .unwrap_or_default(),
        _ => Options::read(command.args(), "w p s x X i q e c", false)
            .operands
            .first()
            .map(|field| field.text.clone())
            .unwrap_or_default(),
    };
    Some(everything(command, to))
}

/// `host:path` or `scheme://host/path`.
fn remote_part(text: &str) -> Option<&str> {
    if let Some((_, rest)) = text.split_once("://") {
        return Some(places::host_of(rest));
    }
    let (host, _) = text.split_once(':')?;
    (!host.is_empty() && !host.contains('/')).then_some(host)
}

fn copy(command: &Command) -> Option<Transfer> {
    let valued = "i e P F o c J l S D X rsh port exclude include filter files-from exclude-from include-from rsync-path password-file";
    let options = Options::read(command.args(), valued, false);
    let (target, sent) = options.operands.split_last()?;
    let to = remote_part(&target.text)?;
    let mut data: Sources = sent
        .iter()
        .filter(|field| remote_part(&field.text).is_none())
        .flat_map(|field| std::iter::once(Source::File(command.path(&field.text))).chain(field.sources.clone()))
        .collect();
    data.extend(command.reads.iter().cloned());
    Some(Transfer {
        local: places::is_local_host(to),
        to: to.to_owned(),
        bulk: !data.is_empty(),
        data,
        ..Transfer::default()
    })
}

fn bucket(command: &Command) -> Option<Transfer> {
    let is_remote = |text: &str| text.contains("://") || command.program == "rclone" && text.contains(':');
    let words: Vec<&Field> = command.args().iter().filter(|field| !field.text.starts_with('-')).collect();
    let verbs = [
        "cp",
        "sync",
        "mv",
        "copy",
        "rsync",
        "upload",
        "put",
        "move",
        "upload-batch",
        "put-object",
        "mirror",
        "copyto",
    ];
    let verb = words.iter().position(|field| verbs.contains(&field.text.as_str()))?;
    let operands = &words[verb + 1..];
    let to = match operands.iter().rposition(|field| is_remote(&field.text)) {
        // Down from the bucket, not up.
        Some(0) if operands.len() > 1 => return None,
        Some(at) => operands[at].text.clone(),
        None if matches!(command.program.as_str(), "az" | "b2") || command.has("put-object") => {
            String::from("a bucket")
        }
        None => return None,
    };
    let data: Sources = operands
        .iter()
        .filter(|field| !is_remote(&field.text))
        .flat_map(|field| std::iter::once(Source::File(command.path(&field.text))).chain(field.sources.clone()))
        .chain(command.reads.iter().cloned())
        .chain(command.stdin.sources.iter().cloned())
        .collect();
    Some(Transfer { to, local: false, bulk: true, data, ..Transfer::default() })
}
