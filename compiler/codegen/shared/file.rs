//! The file of a shared library: headers and sections in file order.

use crate::codegen::weights::Blob;
use object::elf::{self, FileHeader64, Ident, ProgramHeader64, SectionHeader64, Sym64};
use object::pod::bytes_of;
use object::{LittleEndian as LE, U16, U32, U64};
use std::io::{Result, Write};

const FILE_HEADER: usize = size_of::<FileHeader64<LE>>();
const PROGRAM_HEADER: usize = size_of::<ProgramHeader64<LE>>();
const SECTION_HEADER: usize = size_of::<SectionHeader64<LE>>();

/// The segment of a section.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Segment {
    /// Headers, tables, constants.
    ReadOnly,
    /// Functions.
    Code,
    /// Data that only the dynamic linker writes, once.
    Relocated,
    /// Data.
    Data,
    /// Data that begins as zeros.
    Zeros,
    /// The weights.
    Weights,
    /// Not loaded.
    None,
}

/// Segments in the order of their addresses.
const SEGMENTS: [(Segment, u32); 6] = [
    (Segment::ReadOnly, elf::PF_R),
    (Segment::Code, elf::PF_R | elf::PF_X),
    (Segment::Relocated, elf::PF_R | elf::PF_W),
    (Segment::Data, elf::PF_R | elf::PF_W),
    (Segment::Zeros, elf::PF_R | elf::PF_W),
    (Segment::Weights, elf::PF_R),
];

/// The contents of a section.
#[derive(Clone, Debug)]
pub enum Contents {
    /// These bytes, or zeros up to its size.
    Bytes(Vec<u8>),
    /// The weights.
    Weights,
}

/// A section.
#[derive(Clone, Debug)]
pub struct Chunk {
    pub name: String,
    pub sh_type: u32,
    pub segment: Segment,
    pub size: usize,
    pub align: u64,
    pub entry: u64,
    /// The chunk that it refers to; its own index means none.
    pub link: usize,
    pub info: u32,
    pub offset: usize,
    pub addr: u64,
    pub contents: Contents,
}

impl Chunk {
    /// A section of `size` zeros, of fixed-size entries or of anything.
    pub fn table(name: &str, sh_type: u32, segment: Segment, size: usize, entry: u64) -> Chunk {
        let (link, contents) = (usize::MAX, Contents::Bytes(vec![]));
        Chunk {
            name: name.into(),
            sh_type,
            segment,
            size,
            align: 16,
            entry,
            link,
            info: 0,
            offset: 0,
            addr: 0,
            contents,
        }
    }
}

/// A library.
#[derive(Debug)]
pub struct Image {
    machine: u16,
    flags: u32,
    /// In the order of [`Segment`].
    pub chunks: Vec<Chunk>,
    end: usize,
}

impl Image {
    /// An image without sections.
    pub fn new(machine: u16, flags: u32) -> Image {
        Image { machine, flags, chunks: vec![], end: 0 }
    }
    /// Adds a section and returns its index. A section that is not loaded must be added after
    /// [`Image::lay_out`].
    pub fn push(&mut self, mut chunk: Chunk) -> usize {
        if chunk.segment == Segment::Zeros {
            chunk.sh_type = elf::SHT_NOBITS;
        }
        if chunk.segment == Segment::None {
            chunk.offset = self.end.next_multiple_of(8);
            self.end = chunk.offset + chunk.size;
        }
        self.chunks.push(chunk);
        self.chunks.len() - 1
    }
    /// Sets the contents of a section; the rest is zeros.
    pub fn fill(&mut self, chunk: usize, bytes: &[u8]) {
        self.chunks[chunk].contents = Contents::Bytes(bytes.to_vec());
    }
    /// The index of a chunk's section in the file, where the null section is first.
    pub fn section_number(&self, chunk: usize) -> u16 {
        chunk as u16 + 1
    }
    fn page(&self) -> u64 {
        if self.machine == elf::EM_AARCH64 { 0x10000 } else { 0x1000 }
    }
    /// Assigns offsets and addresses to all loaded sections.
    pub fn lay_out(&mut self) {
        let (page, mut offset, mut bias) =
            (self.page(), FILE_HEADER + PROGRAM_HEADER * (SEGMENTS.len() + 4), 0);
        for (segment, _) in SEGMENTS {
            // The next page, at the same offset within the page as in the file.
            bias += if segment == Segment::ReadOnly { 0 } else { page };
            let mut addr = offset as u64 + bias;
            for c in self.chunks.iter_mut().filter(|c| c.segment == segment) {
                if c.segment == Segment::Zeros {
                    addr = addr.next_multiple_of(c.align);
                    (c.offset, c.addr) = (offset, addr);
                    addr += c.size as u64;
                    continue;
                }
                offset = offset.next_multiple_of(c.align as usize);
                (c.offset, c.addr) = (offset, offset as u64 + bias);
                offset += c.size;
            }
            if segment == Segment::Zeros {
                bias += (addr - offset as u64 - bias).next_multiple_of(page);
            }
        }
        self.end = offset;
    }
    /// First and last byte of a segment, and its size in memory.
    fn extent(&self, segment: Segment) -> Option<(usize, u64, usize, u64)> {
        let mut parts = self.chunks.iter().filter(|c| c.segment == segment && c.size > 0);
        let first = parts.next()?;
        let last = parts.next_back().unwrap_or(first);
        // The headers are loaded as well.
        let (offset, addr) = if segment == Segment::ReadOnly { (0, 0) } else { (first.offset, first.addr) };
        let memory = last.addr + last.size as u64 - addr;
        let file = if segment == Segment::Zeros { 0 } else { memory as usize };
        Some((offset, addr, file, memory))
    }
    fn program_headers(&self) -> Vec<u8> {
        let header =
            |p_type: u32, flags: u32, (offset, addr, file, memory): (usize, u64, usize, u64), align: u64| {
                let word = |v: u64| U64::new(LE, v);
                bytes_of(&ProgramHeader64::<LE> {
                    p_type: U32::new(LE, p_type),
                    p_flags: U32::new(LE, flags),
                    p_offset: word(offset as u64),
                    p_vaddr: word(addr),
                    p_paddr: word(addr),
                    p_filesz: word(file as u64),
                    p_memsz: word(memory),
                    p_align: word(align),
                })
                .to_vec()
            };
        let mut out = vec![];
        for (segment, flags) in SEGMENTS {
            if let Some(e) = self.extent(segment) {
                out.push(header(elf::PT_LOAD, flags, e, self.page()));
            }
        }
        if let Some(d) = self.chunks.iter().find(|c| c.sh_type == elf::SHT_DYNAMIC) {
            out.push(header(
                elf::PT_DYNAMIC,
                elf::PF_R | elf::PF_W,
                (d.offset, d.addr, d.size, d.size as u64),
                8,
            ));
        }
        if let Some(e) = self.extent(Segment::Relocated) {
            out.push(header(elf::PT_GNU_RELRO, elf::PF_R, e, 1));
        }
        // Unwinders locate the tables of a loaded library by this header.
        if let Some(c) = self.chunks.iter().find(|c| c.name == ".eh_frame_hdr") {
            out.push(header(elf::PT_GNU_EH_FRAME, elf::PF_R, (c.offset, c.addr, c.size, c.size as u64), 4));
        }
        // The stack is not executable.
        out.push(header(elf::PT_GNU_STACK, elf::PF_R | elf::PF_W, (0, 0, 0, 0), 16));
        out.concat()
    }
    /// Names of all sections, and the offset of each.
    fn names(&self) -> (Vec<u8>, Vec<u32>) {
        let (mut bytes, mut starts) = (vec![0], vec![]);
        for name in self.chunks.iter().map(|c| c.name.as_str()).chain([".shstrtab"]) {
            starts.push(bytes.len() as u32);
            bytes.extend(name.as_bytes());
            bytes.push(0);
        }
        (bytes, starts)
    }
    /// Writes the file.
    pub fn write(&self, out: &mut dyn Write, weights: &Blob) -> Result<()> {
        let (names, starts) = self.names();
        let headers = (self.end + names.len()).next_multiple_of(8);
        let programs = self.program_headers();
        let mut o = Output { out, at: 0 };
        o.write(bytes_of(&self.file_header(headers, programs.len() / PROGRAM_HEADER)))?;
        o.write(&programs)?;
        for c in self.chunks.iter().filter(|c| c.sh_type != elf::SHT_NOBITS && c.size > 0) {
            o.pad(c.offset)?;
            match &c.contents {
                Contents::Bytes(b) => o.write(b)?,
                Contents::Weights => {
                    let mut done = Ok(());
                    weights.stream(&mut |b| {
                        if done.is_ok() {
                            done = o.write(b);
                        }
                    });
                    done?;
                }
            }
            o.pad(c.offset + c.size)?;
        }
        o.pad(self.end)?;
        o.write(&names)?;
        o.pad(headers)?;
        o.write(&[0; SECTION_HEADER])?;
        let last = Chunk {
            offset: self.end,
            align: 1,
            ..Chunk::table(".shstrtab", elf::SHT_STRTAB, Segment::None, names.len(), 0)
        };
        for (c, name) in self.chunks.iter().chain([&last]).zip(starts) {
            o.write(bytes_of(&self.section_header(c, name)))?;
        }
        Ok(())
    }
    fn file_header(&self, sections: usize, programs: usize) -> FileHeader64<LE> {
        let half = |v: usize| U16::new(LE, v as u16);
        FileHeader64 {
            e_ident: Ident {
                magic: elf::ELFMAG,
                class: elf::ELFCLASS64,
                data: elf::ELFDATA2LSB,
                version: elf::EV_CURRENT,
                os_abi: elf::ELFOSABI_NONE,
                abi_version: 0,
                padding: [0; 7],
            },
            e_type: U16::new(LE, elf::ET_DYN),
            e_machine: U16::new(LE, self.machine),
            e_version: U32::new(LE, u32::from(elf::EV_CURRENT)),
            e_entry: U64::new(LE, 0),
            e_phoff: U64::new(LE, FILE_HEADER as u64),
            e_shoff: U64::new(LE, sections as u64),
            e_flags: U32::new(LE, self.flags),
            e_ehsize: half(FILE_HEADER),
            e_phentsize: half(PROGRAM_HEADER),
            e_phnum: half(programs),
            e_shentsize: half(SECTION_HEADER),
            e_shnum: half(self.chunks.len() + 2),
            e_shstrndx: half(self.chunks.len() + 1),
        }
    }
    fn section_header(&self, c: &Chunk, name: u32) -> SectionHeader64<LE> {
        let flags = match c.segment {
            Segment::None => 0,
            Segment::ReadOnly | Segment::Weights => elf::SHF_ALLOC,
            Segment::Code => elf::SHF_ALLOC | elf::SHF_EXECINSTR,
            Segment::Relocated | Segment::Data | Segment::Zeros => elf::SHF_ALLOC | elf::SHF_WRITE,
        };
        let link = if c.link == usize::MAX { 0 } else { u32::from(self.section_number(c.link)) };
        let word = |v: u64| U64::new(LE, v);
        SectionHeader64 {
            sh_name: U32::new(LE, name),
            sh_type: U32::new(LE, c.sh_type),
            sh_flags: word(flags.into()),
            sh_addr: word(c.addr),
            sh_offset: word(c.offset as u64),
            sh_size: word(c.size as u64),
            sh_link: U32::new(LE, link),
            sh_info: U32::new(LE, c.info),
            sh_addralign: word(c.align),
            sh_entsize: word(c.entry),
        }
    }
}

struct Output<'a> {
    out: &'a mut dyn Write,
    at: usize,
}

impl Output<'_> {
    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.at += bytes.len();
        self.out.write_all(bytes)
    }
    /// Writes zeros up to this offset.
    fn pad(&mut self, to: usize) -> Result<()> {
        let mut left = to.saturating_sub(self.at);
        while left > 0 {
            let n = left.min(4096);
            self.write(&[0; 4096][..n])?;
            left -= n;
        }
        Ok(())
    }
}

/// A symbol.
#[derive(Clone, Copy, Debug)]
pub struct Symbol {
    pub name: u32,
    pub info: u8,
    pub section: u16,
    pub value: u64,
    pub size: u64,
}

/// A table of symbols that begins with the null symbol.
pub fn symbols(list: Vec<Symbol>) -> Vec<u8> {
    let mut out = vec![0; size_of::<Sym64<LE>>()];
    for s in list {
        out.extend(bytes_of(&Sym64::<LE> {
            st_name: U32::new(LE, s.name),
            st_info: s.info,
            st_other: 0,
            st_shndx: U16::new(LE, s.section),
            st_value: U64::new(LE, s.value),
            st_size: U64::new(LE, s.size),
        }));
    }
    out
}

/// The System V hash table for the hashes of all symbols except the null symbol, with as many buckets as
/// symbols.
pub fn hash_table(hashes: &[u32]) -> Vec<u8> {
    let n = hashes.len() as u32 + 1;
    let (mut buckets, mut chains) = (vec![0; n as usize], vec![0; n as usize]);
    for (i, h) in hashes.iter().enumerate() {
        let bucket = (h % n) as usize;
        chains[i + 1] = std::mem::replace(&mut buckets[bucket], i as u32 + 1);
    }
    [n, n].into_iter().chain(buckets).chain(chains).flat_map(u32::to_le_bytes).collect()
}
