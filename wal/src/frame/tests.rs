//! Round trips of every record kind, what the codec refuses, and the golden bytes of version 1.
#![allow(clippy::unwrap_used, clippy::panic)]

use proptest::prelude::*;

use super::*;

fn encode(records: &[Record], cut_terms: &[u64]) -> Vec<u8> {
    let header = FrameHeader {
        first_index: 5,
        salt: 0x0102_0304_0506_0708,
        ..FrameHeader::empty(FrameKind::Batch, 9, 7)
    };
    let mut encoder = Encoder::new();
    let encoded = encoder.encode(header, records.iter(), cut_terms);
    encoded.parts.iter().flat_map(|part| part.iter()).copied().collect()
}

fn decode(bytes: &[u8]) -> (FrameHeader, Vec<Record>, Vec<u64>) {
    let head = bytes[..FRAME_HEADER_BYTES].try_into().unwrap();
    let header = FrameHeader::decode(head).unwrap();
    assert_eq!(header.frame_bytes(), bytes.len() as u64);
    let body = &bytes[FRAME_HEADER_BYTES..];
    assert_eq!(crc32c::crc32c(body), header.body_crc);
    let (mut records, mut cut_terms, mut next) = (Vec::new(), Vec::new(), header.first_index);
    decode_body(&header, body, |view| match view {
        RecordView::Entry { term, payload, at } => {
            assert_eq!(&bytes[at as usize..at as usize + payload.len()], payload);
            records.push(Record::Entry { index: next, term, payload: payload.to_vec() });
            next += 1;
        }
        RecordView::Vote(vote) => records.push(Record::Vote(vote.to_vec())),
        RecordView::Committed { index, term } => records.push(Record::Committed { index, term }),
        RecordView::Cut { from, previous_term } => {
            records.push(Record::Cut { from });
            cut_terms.push(previous_term);
            next = from;
        }
    })
    .unwrap();
    (header, records, cut_terms)
}

fn payloads() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        prop::collection::vec(any::<u8>(), 0..40),
        prop::collection::vec(any::<u8>(), COPY_MAX - 9..COPY_MAX + 9),
    ]
}

fn any_records() -> impl Strategy<Value = Vec<Record>> {
    let one = prop_oneof![
        4 => (any::<u64>(), payloads())
            .prop_map(|(term, payload)| Record::Entry { index: 0, term, payload }),
        1 => payloads().prop_map(Record::Vote),
        1 => (any::<u64>(), any::<u64>())
            .prop_map(|(index, term)| Record::Committed { index, term }),
        1 => (1..9u64).prop_map(|from| Record::Cut { from }),
    ];
    prop::collection::vec(one, 1..12).prop_map(|mut records| {
        let mut next = 5;
        for record in &mut records {
            match record {
                Record::Entry { index, .. } => {
                    *index = next;
                    next += 1;
                }
                Record::Cut { from } => next = *from,
                _ => {}
            }
        }
        records
    })
}

proptest! {
    #[test]
    fn every_batch_comes_back(records in any_records()) {
        let cuts = records.iter().filter(|record| matches!(record, Record::Cut { .. })).count();
        let terms: Vec<u64> = (0..cuts as u64).map(|cut| cut + 70).collect();
        let bytes = encode(&records, &terms);
        prop_assert_eq!(bytes.len() % ALIGN, 0);
        prop_assert_eq!(bytes.len() as u64, batch_bytes(records.iter()));
        let (header, decoded, cut_terms) = decode(&bytes);
        prop_assert_eq!(decoded, records);
        prop_assert_eq!(cut_terms, terms);
        prop_assert_eq!((header.seq, header.durable_seq), (9, 7));
    }

    #[test]
    fn no_body_makes_the_decoder_panic(
        body in prop::collection::vec(any::<u8>(), 0..200),
        kinds in prop::collection::vec(0..6u32, 1..4),
        records in 0..9u32,
    ) {
        let mut body = body;
        for (place, kind) in kinds.iter().enumerate() {
            let at = place * 48;
            if body.len() >= at + RECORD_HEADER_BYTES {
                body[at + 8..at + 12].copy_from_slice(&(place as u32 * 11).to_le_bytes());
                body[at + 12..at + 16].copy_from_slice(&kind.to_le_bytes());
            }
        }
        let header = FrameHeader { records, ..FrameHeader::empty(FrameKind::Batch, 1, 0) };
        let _ = decode_body(&header, &body, |_| ());
    }
}

#[test]
fn a_flip_of_any_bit_of_a_header_is_seen() {
    let good = FrameHeader::empty(FrameKind::Seal, 9, 8).encode();
    for bit in 0..good.len() * 8 {
        let mut bad = good;
        bad[bit / 8] ^= 1 << (bit % 8);
        assert!(FrameHeader::decode(&bad).is_err(), "bit {bit}");
    }
}

fn body_of(kind: u32, bytes: u32, payload: &[u8]) -> Vec<u8> {
    let mut body = RecordHeader { term: 1, bytes, kind, crc: 0 }.encode().to_vec();
    body.extend_from_slice(payload);
    body
}

#[test]
fn what_means_nothing_is_refused() {
    let header = |records| FrameHeader { records, ..FrameHeader::empty(FrameKind::Batch, 1, 0) };
    let refused = |records, body: &[u8]| decode_body(&header(records), body, |_| ()).unwrap_err();
    assert_eq!(refused(1, &body_of(9, 8, &[0; 8])), BadBody::RecordKind(9));
    assert_eq!(refused(1, &body_of(0, 0, &[])), BadBody::RecordKind(0));
    assert_eq!(refused(1, &body_of(ENTRY, 9, &[0; 8])), BadBody::Overrun);
    assert_eq!(refused(1, &body_of(ENTRY, u32::MAX, &[0; 8])), BadBody::Overrun);
    assert_eq!(refused(1, &body_of(CUT, 7, &[0; 8])), BadBody::Overrun);
    assert_eq!(refused(1, &[0; 10]), BadBody::Overrun);
    assert_eq!(refused(2, &body_of(VOTE, 8, &[0; 8])), BadBody::Count { claimed: 2, found: 1 });
    assert_eq!(FrameHeader { kind: 4, ..header(0) }.known_kind(), None);
}

/// Never change these: they are what version 1 wrote.
#[test]
fn the_bytes_of_version_1_stay_readable() {
    let records = [
        Record::Entry { index: 5, term: 2, payload: b"docket".to_vec() },
        Record::Vote(b"v".to_vec()),
        Record::Committed { index: 4, term: 2 },
        Record::Cut { from: 5 },
    ];
    let golden = include_str!("golden-1.txt");
    let golden: Vec<u8> =
        golden.split_whitespace().map(|byte| u8::from_str_radix(byte, 16).unwrap()).collect();
    let (_, decoded, cut_terms) = decode(&golden);
    assert_eq!(decoded, records);
    assert_eq!(cut_terms, [1]);
    assert_eq!(encode(&records, &[1]), golden, "a change of the bytes needs a new version");
}
