//! Finds the kernel programs that `cargo xtask build-ebpf` made, to embed them. Without them everything builds too;
//! the probe then says which command makes them.

use std::path::{Path, PathBuf};

fn main() {
    // For packagers, whose object is elsewhere.
    println!("cargo::rerun-if-env-changed=RINGFENCE_EBPF_OBJECT");
    println!("cargo::rerun-if-changed=build.rs");
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let object = std::env::var_os("RINGFENCE_EBPF_OBJECT").map(PathBuf::from).or_else(|| {
        let directory = target_directory(&out)?.join("ebpf");
        // The directory is watched, not the file: cargo takes a missing file for one that always changed.
        std::fs::create_dir_all(&directory).ok()?;
        println!("cargo::rerun-if-changed={}", directory.display());
        Some(directory.join("ringfence-ebpf.o"))
    });
    let embedded = match object.filter(|path| path.is_file()) {
        Some(path) => {
            println!("cargo::rerun-if-changed={}", path.display());
            format!("Some(aya::include_bytes_aligned!({:?}))", path)
        }
        None => "None".to_owned(),
    };
    let text = format!(
        "/// The kernel programs, when they were there at build time.\nconst OBJECT: Option<&[u8]> = {embedded};\n"
    );
    std::fs::write(out.join("object.rs"), text).expect("OUT_DIR can be written");
}

/// Cargo marks its target directory with a tag; `OUT_DIR` is below it, however it was chosen.
fn target_directory(out: &Path) -> Option<PathBuf> {
    out.ancestors().find(|directory| directory.join("CACHEDIR.TAG").is_file()).map(Path::to_owned)
}
