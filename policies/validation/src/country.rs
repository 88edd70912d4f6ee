//! ISO 3166-1 alpha-2.

/// The officially assigned codes, two letters each.
const CODES: &str = "ADAEAFAGAIALAMAOAQARASATAUAWAXAZBABBBDBEBFBGBHBIBJBLBMBNBOBQBRBSBTBVBWBYBZCACCCDCFCGCHCI\
CKCLCMCNCOCRCUCVCWCXCYCZDEDJDKDMDODZECEEEGEHERESETFIFJFKFMFOFRGAGBGDGEGFGGGHGIGLGMGNGPGQGRGSGTGUGWGYHKHMHNHR\
HTHUIDIEILIMINIOIQIRISITJEJMJOJPKEKGKHKIKMKNKPKRKWKYKZLALBLCLILKLRLSLTLULVLYMAMCMDMEMFMGMHMKMLMMMNMOMPMQMRMS\
MTMUMVMWMXMYMZNANCNENFNGNINLNONPNRNUNZOMPAPEPFPGPHPKPLPMPNPRPSPTPWPYQARERORSRURWSASBSCSDSESGSHSISJSKSLSMSNSO\
SRSSSTSVSXSYSZTCTDTFTGTHTJTKTLTMTNTOTRTTTVTWTZUAUGUMUSUYUZVAVCVEVGVIVNVUWFWSYEYTZAZMZW";

/// Whether a code is assigned, in either case.
pub fn exists(code: &str) -> bool {
    let code = code.to_ascii_uppercase();
    CODES.as_bytes().chunks_exact(2).any(|known| known == code.as_bytes())
}

#[cfg(test)]
mod tests {
    #[test]
    fn country_codes_are_complete_and_sorted() {
        let codes: Vec<_> = super::CODES.as_bytes().chunks(2).collect();
        assert_eq!(codes.len(), 249);
        assert!(codes.is_sorted());
        assert!(super::exists("de") && super::exists("US") && !super::exists("XX") && !super::exists("D"));
    }
}
