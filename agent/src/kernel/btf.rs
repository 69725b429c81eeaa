//! Where the fields of the kernel's structs are: a small reader of BTF (Documentation/bpf/btf.rst).
#![forbid(unsafe_code)]

use std::collections::HashMap;
use std::ffi::CStr;

use super::KernelError;

/// The running kernel's type information.
pub const VMLINUX: &str = "/sys/kernel/btf/vmlinux";

const MAGIC: u16 = 0xeb9f;
/// Deepest nesting of anonymous structs and chain of qualifiers that is followed.
const DEPTH: usize = 16;

const KIND_INT: u32 = 1;
const KIND_POINTER: u32 = 2;
const KIND_ARRAY: u32 = 3;
const KIND_STRUCT: u32 = 4;
const KIND_UNION: u32 = 5;
const KIND_ENUM: u32 = 6;
const KIND_TYPEDEF: u32 = 8;
const KIND_VOLATILE: u32 = 9;
const KIND_CONST: u32 = 10;
const KIND_RESTRICT: u32 = 11;
const KIND_FUNC: u32 = 12;
const KIND_FUNC_PROTO: u32 = 13;
const KIND_VAR: u32 = 14;
const KIND_DATASEC: u32 = 15;
const KIND_DECL_TAG: u32 = 17;
const KIND_TYPE_TAG: u32 = 18;
const KIND_ENUM64: u32 = 19;

/// Type information of one kernel.
pub struct TypeInfo {
    bytes: Vec<u8>,
    strings: usize,
    /// Offset of each type in `bytes`; type 0 is `void`.
    types: Vec<usize>,
    /// First type of each name, structs and unions only.
    structs: HashMap<String, u32>,
}

#[derive(Clone, Copy)]
struct Type {
    at: usize,
    name: u32,
    kind: u32,
    /// Members, parameters, values.
    count: u32,
    /// Whether a member's offset holds a bit-field size in its upper byte.
    bit_fields: bool,
    /// Size, or the type referred to.
    size_or_type: u32,
}

impl TypeInfo {
    /// Of the running kernel.
    pub fn of_running_kernel() -> Result<TypeInfo, KernelError> {
        let bytes = std::fs::read(VMLINUX).map_err(|e| KernelError::Btf(format!("{VMLINUX}: {e}")))?;
        Self::parse(bytes)
    }

    /// Reads raw BTF in this machine's byte order.
    pub fn parse(bytes: Vec<u8>) -> Result<TypeInfo, KernelError> {
        let broken = |what: &str| KernelError::Btf(format!("{what} is broken"));
        let word = |at: usize| read_u32(&bytes, at).ok_or_else(|| broken("its header"));
        if bytes.get(..2).map(|m| u16::from_ne_bytes([m[0], m[1]])) != Some(MAGIC) {
            return Err(broken("its magic number"));
        }
        let header = word(4)? as usize;
        let (begin, len) = (header + word(8)? as usize, word(12)? as usize);
        let strings = header + word(16)? as usize;
        let end = begin.checked_add(len).filter(|end| *end <= bytes.len()).ok_or_else(|| broken("its type section"))?;
        let mut info = TypeInfo { bytes, strings, types: vec![0], structs: HashMap::new() };
        let mut at = begin;
        while at < end {
            let one = info.type_at(at).ok_or_else(|| broken("a type"))?;
            let id = info.types.len() as u32;
            info.types.push(at);
            if matches!(one.kind, KIND_STRUCT | KIND_UNION) {
                let name = info.name(one.name).to_owned();
                info.structs.entry(name).or_insert(id);
            }
            at += 12 + trailer(&one).ok_or_else(|| KernelError::Btf(format!("kind {} is unknown", one.kind)))?;
        }
        Ok(info)
    }

    /// Byte offset of `path` (`member`, or `member.member`) in `structure`. Anonymous structs and unions are looked
    /// into. An error names the field.
    pub fn offset(&self, structure: &str, path: &str) -> Result<u64, KernelError> {
        let missing = || KernelError::Btf(format!("there is no field {path} in struct {structure}"));
        let mut at = self.structs.get(structure).copied().ok_or_else(missing)?;
        let mut offset = 0;
        for name in path.split('.') {
            let (bits, next) = self.member(at, name, 0).ok_or_else(missing)?;
            if bits % 8 != 0 {
                return Err(KernelError::Btf(format!("field {path} in struct {structure} is a bit field")));
            }
            offset += bits / 8;
            at = next;
        }
        Ok(offset)
    }

    /// Which argument of a function, counted from 0, is the first pointer to `structure`; `None` when there is none.
    pub fn argument(&self, function: &str, structure: &str) -> Option<u64> {
        let types = self.types.iter().skip(1).filter_map(|at| self.type_at(*at));
        let function = types.into_iter().find(|one| one.kind == KIND_FUNC && self.name(one.name) == function)?;
        let prototype = self.get(function.size_or_type)?;
        (0..u64::from(prototype.count)).find(|n| {
            let at = prototype.at + 12 + *n as usize * 8 + 4;
            let pointer = read_u32(&self.bytes, at).and_then(|kind| self.resolve(kind));
            let target = pointer.filter(|one| one.kind == KIND_POINTER).and_then(|one| self.resolve(one.size_or_type));
            target.is_some_and(|one| one.kind == KIND_STRUCT && self.name(one.name) == structure)
        })
    }

    /// Bit offset and type of a member.
    fn member(&self, id: u32, wanted: &str, depth: usize) -> Option<(u64, u32)> {
        if depth > DEPTH {
            return None;
        }
        let structure = self.resolve(id)?;
        if !matches!(structure.kind, KIND_STRUCT | KIND_UNION) {
            return None;
        }
        for n in 0..structure.count as usize {
            let at = structure.at + 12 + n * 12;
            let (name, kind) = (read_u32(&self.bytes, at)?, read_u32(&self.bytes, at + 4)?);
            let raw = read_u32(&self.bytes, at + 8)?;
            let bits = u64::from(if structure.bit_fields { raw & 0x00ff_ffff } else { raw });
            let name = self.name(name);
            if name == wanted {
                return Some((bits, kind));
            }
            if name.is_empty()
                && let Some((inner, kind)) = self.member(kind, wanted, depth + 1)
            {
                return Some((bits + inner, kind));
            }
        }
        None
    }

    /// The type behind typedefs and qualifiers.
    fn resolve(&self, mut id: u32) -> Option<Type> {
        for _ in 0..DEPTH {
            let one = self.get(id)?;
            match one.kind {
                KIND_TYPEDEF | KIND_VOLATILE | KIND_CONST | KIND_RESTRICT | KIND_TYPE_TAG => id = one.size_or_type,
                _ => return Some(one),
            }
        }
        None
    }

    fn get(&self, id: u32) -> Option<Type> {
        let at = *self.types.get(id as usize)?;
        if id == 0 { None } else { self.type_at(at) }
    }

    fn type_at(&self, at: usize) -> Option<Type> {
        let info = read_u32(&self.bytes, at + 4)?;
        Some(Type {
            at,
            name: read_u32(&self.bytes, at)?,
            kind: info >> 24 & 0x1f,
            count: info & 0xffff,
            bit_fields: info >> 31 != 0,
            size_or_type: read_u32(&self.bytes, at + 8)?,
        })
    }

    fn name(&self, at: u32) -> &str {
        let rest = self.bytes.get(self.strings + at as usize..).unwrap_or_default();
        CStr::from_bytes_until_nul(rest).ok().and_then(|name| name.to_str().ok()).unwrap_or_default()
    }
}

fn read_u32(bytes: &[u8], at: usize) -> Option<u32> {
    // Few calls: this runs a million times at every start, in test builds too.
    bytes.get(at..)?.first_chunk().copied().map(u32::from_ne_bytes)
}

/// Bytes that follow the twelve that every type has; `None` for a kind that this reader does not know.
fn trailer(one: &Type) -> Option<usize> {
    let count = one.count as usize;
    Some(match one.kind {
        KIND_INT | KIND_VAR | KIND_DECL_TAG => 4,
        KIND_ARRAY => 12,
        KIND_STRUCT | KIND_UNION | KIND_DATASEC | KIND_ENUM64 => 12 * count,
        KIND_ENUM | KIND_FUNC_PROTO => 8 * count,
        // pointer, forward, typedef, the qualifiers, function, float, type tag
        KIND_POINTER | 7..=11 | KIND_FUNC | 16 | KIND_TYPE_TAG => 0,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    macro_rules! table {
        ($($name:ident: $struct:literal, $member:literal;)*) => { &[$(($struct, $member)),*] };
    }

    #[test]
    fn every_field_of_the_table_is_found() {
        let Ok(info) = TypeInfo::of_running_kernel() else {
            eprintln!("SKIPPED every_field_of_the_table_is_found: {VMLINUX} cannot be read here");
            return;
        };
        let fields: &[(&str, &str)] = ringfence_common::kernel_fields!(table);
        for (structure, member) in fields {
            info.offset(structure, member).unwrap();
        }
        assert_eq!(info.offset("dentry", "d_name.name").unwrap() % 8, 0);
        assert_eq!(info.argument("bpf_lsm_inode_link", "inode"), Some(1));
        assert_eq!(info.argument("bpf_lsm_inode_link", "file"), None);
        let error = info.offset("file", "no_such_field").unwrap_err().to_string();
        assert!(error.contains("no_such_field") && error.contains("struct file"), "{error}");
    }

    #[test]
    fn broken_input_is_an_error() {
        assert!(TypeInfo::parse(Vec::new()).is_err());
        assert!(TypeInfo::parse(vec![0x9f, 0xeb, 1, 0, 24, 0, 0, 0]).is_err());
        let mut cut = vec![0u8; 40];
        cut[..2].copy_from_slice(&MAGIC.to_ne_bytes());
        cut[4] = 24;
        cut[12] = 255;
        assert!(TypeInfo::parse(cut).is_err());
    }
}
