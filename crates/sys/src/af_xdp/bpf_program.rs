//! The XDP program as BPF instructions: no compiler is needed, neither to build this crate nor at
//! run time. Encoding and names follow RFC 9669 (the BPF instruction set).

/// Bytes of one instruction (RFC 9669 section 3).
pub const INSTRUCTION_BYTES: usize = 8;

/// Basic instruction, or one half of the 64-bit immediate load (RFC 9669 sections 3.1 and 3.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BpfInstruction {
    /// Operation code.
    pub opcode: u8,
    /// Destination register, or the base of a store: 0 to 10.
    pub destination: u8,
    /// Source register; in some instructions a number that selects a variant.
    pub source: u8,
    /// Offset in bytes (memory) or in instructions (jumps).
    pub offset: i16,
    /// Constant operand.
    pub immediate: i32,
}

/// Byte order of numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ByteOrder {
    /// Lowest byte first.
    Little,
    /// Highest byte first.
    Big,
}

impl ByteOrder {
    /// Byte order of this machine.
    pub const NATIVE: Self = if cfg!(target_endian = "little") {
        Self::Little
    } else {
        Self::Big
    };
}

// Opcodes: class, size and mode (RFC 9669 sections 4 and 5).
/// `MOV`, 64 bits, immediate.
const MOVE_IMMEDIATE: u8 = 0xb7;
/// `LDX | MEM | W`: destination = 32 bits at source + offset.
const LOAD_32: u8 = 0x61;
/// `LD | IMM | DW`: 64-bit immediate, in two slots.
const LOAD_IMMEDIATE_64: u8 = 0x18;
/// `CALL` of a helper function by its number.
const CALL: u8 = 0x85;
/// `EXIT` with register 0.
const EXIT: u8 = 0x95;

/// Source number of [`LOAD_IMMEDIATE_64`] that makes the immediate a map's file descriptor (RFC
/// 9669 section 5.4).
const MAP_BY_DESCRIPTOR: u8 = 1;
/// `bpf_redirect_map` in the list of helper functions of linux/bpf.h.
const REDIRECT_MAP: i32 = 51;
/// `XDP_PASS` of linux/bpf.h: the frame goes to the kernel's stack.
const PASS: i32 = 2;
/// Offset of `rx_queue_index` in `struct xdp_md`.
const RX_QUEUE_INDEX: i16 = 16;

impl BpfInstruction {
    const fn new(opcode: u8, destination: u8, source: u8, offset: i16, immediate: i32) -> Self {
        Self {
            opcode,
            destination,
            source,
            offset,
            immediate,
        }
    }

    /// Encodes the instruction. On big-endian machines the two register numbers are exchanged too,
    /// because the kernel's structure has them as bit fields (RFC 9669 section 3.1).
    #[must_use]
    pub fn encode_program(self, order: ByteOrder) -> [u8; INSTRUCTION_BYTES] {
        let (registers, offset, immediate) = match order {
            ByteOrder::Little => (
                self.source << 4 | self.destination,
                self.offset.to_le_bytes(),
                self.immediate.to_le_bytes(),
            ),
            ByteOrder::Big => (
                self.destination << 4 | self.source,
                self.offset.to_be_bytes(),
                self.immediate.to_be_bytes(),
            ),
        };
        let mut bytes = [0; INSTRUCTION_BYTES];
        bytes[0] = self.opcode;
        bytes[1] = registers;
        bytes[2..4].copy_from_slice(&offset);
        bytes[4..8].copy_from_slice(&immediate);
        bytes
    }
}

/// Program that redirects each frame to the socket that the map (an `XSKMAP`) holds for its receive
/// queue; frames of queues without a socket go to the kernel's stack (Linux 5.3 and later).
#[must_use]
pub fn redirect_by_queue(map_descriptor: i32) -> Vec<BpfInstruction> {
    // Arguments of a helper are in registers 1 to 5; register 1 holds `struct xdp_md` at the start.
    vec![
        BpfInstruction::new(LOAD_32, 2, 1, RX_QUEUE_INDEX, 0),
        BpfInstruction::new(LOAD_IMMEDIATE_64, 1, MAP_BY_DESCRIPTOR, 0, map_descriptor),
        BpfInstruction::new(0, 0, 0, 0, 0),
        // The lower bits of the flags are the action for a queue without a socket.
        BpfInstruction::new(MOVE_IMMEDIATE, 3, 0, 0, PASS),
        BpfInstruction::new(CALL, 0, 0, 0, REDIRECT_MAP),
        BpfInstruction::new(EXIT, 0, 0, 0, 0),
    ]
}

/// Encodes a program for the kernel.
#[must_use]
pub fn encode_program(program: &[BpfInstruction], order: ByteOrder) -> Vec<u8> {
    program
        .iter()
        .flat_map(|instruction| instruction.encode_program(order))
        .collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Bytes derived by hand from RFC 9669 sections 3.1 and 5.4: little-endian, then big-endian.
    /// The tests that attach the program show that the kernel accepts the native form.
    #[test]
    fn the_program_encodes_as_the_golden_table_says() {
        let program = redirect_by_queue(5);
        let little = [
            "61 12 10 00 00 00 00 00",
            "18 11 00 00 05 00 00 00",
            "00 00 00 00 00 00 00 00",
            "b7 03 00 00 02 00 00 00",
            "85 00 00 00 33 00 00 00",
            "95 00 00 00 00 00 00 00",
        ];
        let big = [
            "61 21 00 10 00 00 00 00",
            "18 11 00 00 00 00 00 05",
            "00 00 00 00 00 00 00 00",
            "b7 30 00 00 00 00 00 02",
            "85 00 00 00 00 00 00 33",
            "95 00 00 00 00 00 00 00",
        ];
        let text = |order| -> Vec<String> {
            encode_program(&program, order)
                .chunks(INSTRUCTION_BYTES)
                .map(|bytes| {
                    let bytes: Vec<String> = bytes.iter().map(|b| format!("{b:02x}")).collect();
                    bytes.join(" ")
                })
                .collect()
        };
        assert_eq!(text(ByteOrder::Little), little);
        assert_eq!(text(ByteOrder::Big), big);
    }

    proptest! {
        #[test]
        fn every_field_keeps_its_place(
            opcode: u8, destination in 0_u8..16, source in 0_u8..16, offset: i16, immediate: i32,
        ) {
            let instruction = BpfInstruction { opcode, destination, source, offset, immediate };
            let little = instruction.encode_program(ByteOrder::Little);
            let big = instruction.encode_program(ByteOrder::Big);
            prop_assert_eq!(little[0], opcode);
            prop_assert_eq!((little[1] & 15, little[1] >> 4), (destination, source));
            prop_assert_eq!((big[1] >> 4, big[1] & 15), (destination, source));
            prop_assert_eq!(i16::from_le_bytes([little[2], little[3]]), offset);
            prop_assert_eq!(i16::from_be_bytes([big[2], big[3]]), offset);
            prop_assert_eq!(i32::from_le_bytes(little[4..].try_into().unwrap()), immediate);
            prop_assert_eq!(i32::from_be_bytes(big[4..].try_into().unwrap()), immediate);
        }
    }
}
