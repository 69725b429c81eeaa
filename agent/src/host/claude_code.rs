//! Claude Code: decoding its hook input, and answering it.
