//! The code that is mapped into this process: where it lies, its tables of frames, its symbols.
//!
//! Reads `/proc/self/maps`, the files that it names, and the one image that has none (the vDSO)
//! from memory. What cannot be read, or is no ELF file, is left out: its addresses stay numbers.

use std::collections::BTreeMap;
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use framehop::{ExplicitModuleSectionInfo, Module};
use object::read::ReadCache;
use object::{Object, ObjectSection, ObjectSegment, ObjectSymbol, ReadRef, SymbolKind};

/// The longest image that is read from memory: the vDSO has two pages.
const MEMORY_BYTES_MAX: u64 = 1 << 20;

/// A mapping that holds code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Image {
    /// Its addresses.
    at: Range<u64>,
    /// Where they begin in the file.
    offset: u64,
    path: String,
}

/// What of an image unwinding needs.
pub(super) type Frames = Module<Vec<u8>>;

/// All images of this process.
pub(super) fn images() -> Vec<Image> {
    images_of(&std::fs::read_to_string("/proc/self/maps").unwrap_or_default())
}

/// By proc_pid_maps(5): addresses, rights, offset, device, inode, path.
fn images_of(maps: &str) -> Vec<Image> {
    let image = |line: &str| {
        let mut fields = line.split_ascii_whitespace();
        let (from, to) = fields.next()?.split_once('-')?;
        let hex = |text: &str| u64::from_str_radix(text, 16).ok();
        let at = hex(from)?..hex(to)?;
        let runs = fields.next()?.as_bytes().get(2) == Some(&b'x');
        let offset = hex(fields.next()?)?;
        // What follows the inode, as it stands: a path may hold blanks.
        let inode = fields.nth(1)?;
        let path = line.split_once(&format!(" {inode} "))?.1.trim();
        runs.then(|| Image { at, offset, path: path.to_owned() })
    };
    maps.lines().filter_map(image).filter(|image| !image.path.is_empty()).collect()
}

impl Image {
    /// The last part of its path.
    pub(super) fn name(&self) -> &str {
        let path = self.path.strip_suffix(" (deleted)").unwrap_or(&self.path);
        path.rsplit('/').next().unwrap_or(path)
    }

    /// Whether an address lies in it.
    pub(super) fn holds(&self, address: u64) -> bool {
        self.at.contains(&address)
    }

    /// Its tables of frames.
    pub(super) fn frames(&self) -> Option<Frames> {
        struct Read<'a>(&'a Image);
        impl Reader for Read<'_> {
            type Told = Option<Frames>;
            fn read<'a, R: ReadRef<'a>>(self, data: R) -> Option<Frames> {
                let file = object::File::parse(data).ok()?;
                let bias = self.0.bias(&file)?;
                let span = |name: &str| {
                    let section = file.section_by_name(name)?;
                    Some(section.address()..section.address().checked_add(section.size())?)
                };
                let bytes = |name: &str| Some(file.section_by_name(name)?.data().ok()?.to_vec());
                let sections = ExplicitModuleSectionInfo {
                    base_svma: 0,
                    text_svma: span(".text"),
                    got_svma: span(".got"),
                    eh_frame_svma: span(".eh_frame"),
                    eh_frame: bytes(".eh_frame"),
                    eh_frame_hdr_svma: span(".eh_frame_hdr"),
                    eh_frame_hdr: bytes(".eh_frame_hdr"),
                    ..Default::default()
                };
                Some(Module::new(self.0.path.clone(), self.0.at.clone(), bias, sections))
            }
        }
        self.read(Read(self)).flatten()
    }

    /// The functions at some of its addresses, by address.
    pub(super) fn functions(&self, addresses: &[u64]) -> BTreeMap<u64, String> {
        struct Read<'a>(&'a Image, &'a [u64]);
        impl Reader for Read<'_> {
            type Told = Option<BTreeMap<u64, String>>;
            fn read<'a, R: ReadRef<'a>>(self, data: R) -> Self::Told {
                let file = object::File::parse(data).ok()?;
                let bias = self.0.bias(&file)?;
                Some(functions(&file, bias, self.1))
            }
        }
        self.read(Read(self, addresses)).flatten().unwrap_or_default()
    }

    /// What is to be added to an address in the file for the one in memory.
    fn bias<'a>(&self, file: &object::File<'a, impl ReadRef<'a>>) -> Option<u64> {
        // Mappings begin at a page, segments anywhere in it.
        let pages_end = self.offset.saturating_add(self.at.end.saturating_sub(self.at.start));
        let here = |segment: &object::Segment<'a, '_, _>| {
            let (offset, bytes) = segment.file_range();
            segment.permissions().executable()
                && offset < pages_end
                && self.offset < offset.saturating_add(bytes)
        };
        let segment = file.segments().find(here)?;
        let skipped = self.offset.wrapping_sub(segment.file_range().0);
        Some(self.at.start.wrapping_sub(segment.address().wrapping_add(skipped)))
    }

    fn read<F: Reader>(&self, reader: F) -> Option<F::Told> {
        if self.path == "[vdso]" {
            let bytes =
                self.at.end.checked_sub(self.at.start).filter(|n| *n <= MEMORY_BYTES_MAX)?;
            let mut memory = vec![0; bytes as usize];
            File::open("/proc/self/mem").ok()?.read_exact_at(&mut memory, self.at.start).ok()?;
            return Some(reader.read(memory.as_slice()));
        }
        // The program itself also when its file has been replaced.
        let own = std::fs::read_link("/proc/self/exe").is_ok_and(|p| p.as_os_str() == &*self.path);
        let path = if own { "/proc/self/exe" } else { &self.path };
        let cache = ReadCache::new(File::open(path).ok()?);
        Some(reader.read(&cache))
    }
}

/// Something that is read from a file, or from memory.
trait Reader {
    type Told;
    fn read<'a, R: ReadRef<'a>>(self, data: R) -> Self::Told;
}

fn functions<'a>(
    file: &object::File<'a, impl ReadRef<'a>>,
    bias: u64,
    addresses: &[u64],
) -> BTreeMap<u64, String> {
    let mut all: Vec<_> = file
        .symbols()
        .chain(file.dynamic_symbols())
        .filter(|symbol| symbol.kind() == SymbolKind::Text && symbol.address() > 0)
        .collect();
    all.sort_unstable_by_key(ObjectSymbol::address);
    let name = |address: &u64| {
        let inside = address.wrapping_sub(bias);
        let after = all.partition_point(|symbol| symbol.address() <= inside);
        let symbol = all.get(after.checked_sub(1)?)?;
        // Symbols of assembly have no size; others end.
        let ends = symbol.size() > 0 && inside >= symbol.address().wrapping_add(symbol.size());
        let mangled = symbol.name().ok().filter(|_| !ends)?;
        // The second form leaves the hash out.
        Some((*address, format!("{:#}", rustc_demangle::demangle(mangled))))
    };
    addresses.iter().filter_map(name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lines_with_code_are_images() {
        let maps = "55d0-55d8 r--p 00000000 fe:00 12   /usr/bin/a b (deleted)\n\
                    55d8-55f0 r-xp 00008000 fe:00 12   /usr/bin/a b (deleted)\n\
                    7f00-7f10 r-xp 00000000 00:00 0 \n\
                    7f10-7f20 rw-p 00000000 00:00 0    [stack]\n\
                    7ff0-7ff8 r-xp 00000000 00:00 0    [vdso]\nnonsense\n7ff8\n";
        let images = images_of(maps);
        let told: Vec<_> = images.iter().map(|i| (i.at.start, i.offset, i.name())).collect();
        assert_eq!(told, [(0x55d8, 0x8000, "a b"), (0x7ff0, 0, "[vdso]")]);
        assert!(images[0].holds(0x55ef) && !images[0].holds(0x55f0));
    }

    #[test]
    fn our_own_functions_have_their_names() {
        let here = our_own_functions_have_their_names as *const () as u64;
        let images = images();
        let image = images.iter().find(|image| image.holds(here)).expect("this test's image");
        let found = image.functions(&[here, here + 1]);
        assert_eq!(found.len(), 2);
        for name in found.values() {
            assert!(name.ends_with("our_own_functions_have_their_names"), "{name}");
        }
        assert!(image.frames().is_some());
        let vdso = images.iter().find(|image| image.name() == "[vdso]");
        assert!(vdso.is_none_or(|vdso| vdso.frames().is_some()));
    }
}
