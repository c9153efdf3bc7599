//! Pages of mapped files. What was read of a file counts as memory of the process until the system needs it elsewhere;
//! what is not read again can be given back at once.

/// Gives pages back that show a file to which nothing was written here: the next read finds the same in the file. All
/// other memory stays as it is.
pub(crate) fn release(bytes: &[u8]) {
    if !bytes.is_empty() {
        // Where the system does not tell what its pages are, they stay.
        let _ = system::release(bytes);
    }
}

#[cfg(target_os = "linux")]
mod system {
    use std::ffi::{c_int, c_void};
    use std::fs::File;
    use std::io::{Error, Result};
    use std::os::unix::fs::FileExt;

    unsafe extern "C" {
        fn getpagesize() -> c_int;
        fn madvise(address: *mut c_void, bytes: usize, advice: c_int) -> c_int;
    }

    const DONT_NEED: c_int = 4;
    /// Bytes of what `/proc/self/pagemap` says of a page.
    const ENTRY: usize = size_of::<u64>();
    /// There, and of a file: a page that was written to is no longer.
    const OF_A_FILE: u64 = 1 << 63 | 1 << 61;

    pub fn release(bytes: &[u8]) -> Result<()> {
        // SAFETY: takes nothing and only reads.
        let page = usize::try_from(unsafe { getpagesize() }).map_err(Error::other)?;
        let start = bytes.as_ptr() as usize;
        let (first, end) = (start / page, (start + bytes.len()).div_ceil(page));
        let mut entries = vec![0; (end - first) * ENTRY];
        File::open("/proc/self/pagemap")?.read_exact_at(&mut entries, (first * ENTRY) as u64)?;
        let entries = entries.as_chunks().0.iter().map(|entry| u64::from_ne_bytes(*entry));
        let is_of_a_file: Vec<bool> = entries.map(|entry| entry & OF_A_FILE == OF_A_FILE).collect();
        let mut at = first;
        for run in is_of_a_file.chunk_by(|a, b| a == b) {
            if run[0] {
                let address = bytes.as_ptr().with_addr(at * page).cast_mut().cast();
                // SAFETY: pages of a file that hold what the file holds; reading them again gives the same bytes.
                unsafe { madvise(address, run.len() * page, DONT_NEED) };
            }
            at += run.len();
        }
        Ok(())
    }
}

#[cfg(not(target_os = "linux"))]
mod system {
    pub fn release(_bytes: &[u8]) -> std::io::Result<()> {
        Ok(())
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::io::Write;

    use memmap2::MmapOptions;

    /// Bytes of a mapping that are in memory, as the system counts them.
    fn resident(address: usize) -> usize {
        let all = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let mut lines = all.lines().skip_while(|line| !line.starts_with(&format!("{address:x}-")));
        let line = lines.find_map(|line| line.strip_prefix("Rss:")).unwrap();
        line.trim().trim_end_matches("kB").trim().parse::<usize>().unwrap() * 1024
    }

    /// What was written into a private map of a file stays; everything else is dropped, and read again.
    #[test]
    fn pages_of_files_are_given_back_and_what_was_written_stays() {
        let count = 1 << 20;
        let mut file = tempfile::tempfile().unwrap();
        let mut expected: Vec<u8> = (0..count).map(|i| (i % 251) as u8).collect();
        file.write_all(&expected).unwrap();
        // SAFETY: nobody else has the file.
        let mut map = unsafe { MmapOptions::new().map_copy(&file) }.unwrap();
        (map[300_000], expected[300_000]) = (255, 255);
        assert!(*map == *expected);
        let before = resident(map.as_ptr() as usize);
        super::release(&map[10_000..900_000]);
        let after = resident(map.as_ptr() as usize);
        assert!(before >= count && after <= before - 800_000, "{before} {after}");
        assert!(*map == *expected);
        let own = vec![7_u8; 100_000];
        super::release(&own);
        assert!(own.iter().all(|x| *x == 7));
    }
}
