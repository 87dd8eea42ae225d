//! The GNU build ID of an executable: a note that the linker writes into its first page. build.rs
//! gives rail-cni and rail-ipam the same ID, and every other build of them another one.

use std::fs::OpenOptions;
use std::io::Read as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use nix::libc::O_NONBLOCK;

/// The build ID of this build, in hexadecimal digits.
const OWN: &str = env!("RAIL_CNI_BUILD_ID");
/// Bytes at the beginning of a file in which its note is looked for.
const PAGE: usize = 4096;

/// `p_type` of a program header whose segment has notes, from elf(5).
const PT_NOTE: u64 = 4;
/// Type and owner of the note with the build ID.
const NT_GNU_BUILD_ID: u64 = 3;
const OWNER: &[u8] = b"GNU\0";

/// Whether the file at `path` is an executable of the build that this process runs. A file that
/// cannot be read, or has no build ID, is not.
pub fn is_of_this_build(path: &Path) -> bool {
    // A FIFO in the place of the file would block.
    let Ok(mut file) = OpenOptions::new()
        .read(true)
        .custom_flags(O_NONBLOCK)
        .open(path)
    else {
        return false;
    };
    let mut page = [0; PAGE];
    let Ok(length) = file.read(&mut page) else {
        return false;
    };
    let id = page.get(..length).and_then(build_id);
    id.is_some_and(|id| hexadecimal(id) == OWN)
}

/// The build ID in the first page of a 64-bit little-endian ELF file.
fn build_id(page: &[u8]) -> Option<&[u8]> {
    if !page.starts_with(b"\x7fELF\x02\x01") {
        return None;
    }
    // e_phoff, e_phentsize and e_phnum of elf(5).
    let table = number(page, 32, 8)?;
    let entry_size = number(page, 54, 2)?;
    let entry_count = number(page, 56, 2)?;
    // Smaller entries have no room for the fields, and more of them no room in the page.
    if entry_size < 56 {
        return None;
    }
    for entry in 0..entry_count {
        let header = table.checked_add(entry * entry_size)?;
        if number(page, header, 4)? != PT_NOTE {
            continue;
        }
        let start = number(page, header.checked_add(8)?, 8)?;
        let size = number(page, header.checked_add(32)?, 8)?;
        // The notes of another segment may be further back in the file.
        if let Some(id) = slice(page, start, size).and_then(id_in_notes) {
            return Some(id);
        }
    }
    None
}

/// The build ID among the notes of a segment.
fn id_in_notes(mut notes: &[u8]) -> Option<&[u8]> {
    while !notes.is_empty() {
        let name_size = number(notes, 0, 4)?;
        let content_size = number(notes, 4, 4)?;
        let kind = number(notes, 8, 4)?;
        let name = slice(notes, 12, name_size)?;
        let content_start = 12 + name_size.next_multiple_of(4);
        let content = slice(notes, content_start, content_size)?;
        if kind == NT_GNU_BUILD_ID && name == OWNER {
            return Some(content);
        }
        let next = content_start + content_size.next_multiple_of(4);
        notes = notes.get(usize::try_from(next).ok()?..)?;
    }
    None
}

/// `size` bytes of `bytes` from `start`; `None` if it has not so many.
fn slice(bytes: &[u8], start: u64, size: u64) -> Option<&[u8]> {
    let end = start.checked_add(size)?;
    bytes.get(usize::try_from(start).ok()?..usize::try_from(end).ok()?)
}

/// The little-endian number of `size` bytes, at most 8, at `start`.
fn number(bytes: &[u8], start: u64, size: u64) -> Option<u64> {
    let mut number = 0;
    for byte in slice(bytes, start, size)?.iter().rev() {
        number = number << 8 | u64::from(*byte);
    }
    Some(number)
}

fn hexadecimal(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(2 * bytes.len());
    for byte in bytes {
        for digit in [byte >> 4, byte & 0xf] {
            text.extend(char::from_digit(u32::from(digit), 16));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// An ELF file with one segment, which has these notes: type, owner, content.
    fn elf(notes: &[(u32, &[u8], &[u8])]) -> Vec<u8> {
        let mut segment = Vec::new();
        for (kind, owner, content) in notes {
            let owner_length = u32::try_from(owner.len()).unwrap();
            let content_length = u32::try_from(content.len()).unwrap();
            for word in [owner_length, content_length, *kind] {
                segment.extend(word.to_le_bytes());
            }
            for part in [owner, content] {
                segment.extend(*part);
                segment.resize(segment.len().next_multiple_of(4), 0);
            }
        }
        let mut file = vec![0; 120];
        file[..6].copy_from_slice(b"\x7fELF\x02\x01");
        file[32] = 64;
        file[54] = 56;
        file[56] = 1;
        file[64] = 4;
        file[72] = 120;
        file[96..104].copy_from_slice(&(segment.len() as u64).to_le_bytes());
        file.extend(segment);
        file
    }

    #[test]
    fn the_id_is_found_among_other_notes() {
        let file = elf(&[(1, b"GNU\0", b"abi"), (3, b"Go\0", b"x"), (3, OWNER, b"id")]);
        assert_eq!(build_id(&file), Some(b"id".as_slice()));
        assert_eq!(build_id(&elf(&[(3, b"Go\0", b"x")])), None);
        assert_eq!(build_id(&elf(&[])), None);
    }

    #[test]
    fn a_file_that_is_cut_off_has_no_id() {
        let file = elf(&[(1, b"GNU\0", b"abi"), (3, OWNER, b"0123456789abcdef")]);
        for length in 0..file.len() {
            assert_eq!(build_id(&file[..length]), None, "{length}");
        }
    }

    #[test]
    fn numbers_that_lead_out_of_the_page_are_no_id() {
        let file = elf(&[(3, OWNER, b"id")]);
        // Table, segment, its size, and the sizes in the note.
        for (at, size) in [(32, 8), (72, 8), (96, 8), (120, 4), (124, 4)] {
            let mut wrong = file.clone();
            wrong[at..at + size].fill(0xff);
            assert_eq!(build_id(&wrong), None, "{at}");
        }
    }

    #[test]
    fn hexadecimal_digits_are_those_of_the_linker() {
        assert_eq!(hexadecimal(&[0x00, 0x9f, 0xa0]), "009fa0");
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes: Vec<u8>) {
            let mut file = b"\x7fELF\x02\x01".to_vec();
            file.extend(bytes);
            let _ = build_id(&file);
        }

        #[test]
        fn no_change_makes_it_panic(at in 0..160_usize, byte: u8) {
            let mut file = elf(&[(1, b"GNU\0", b"abi"), (3, OWNER, b"0123456789abcdef")]);
            if let Some(changed) = file.get_mut(at) {
                *changed = byte;
            }
            let _ = build_id(&file);
        }
    }
}
