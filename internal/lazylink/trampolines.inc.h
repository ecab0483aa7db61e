/* trampolines.inc.h: what the assembler files of all architectures share. Each function of a vendor library that a Go package
 * calls has an entry of its name here, hidden from other libraries, which jumps to where the table of that library points. */
#if defined(__ELF__) && defined(__linux__)
.section .note.GNU-stack,"",%progbits
#endif
.text

.macro entry name, table, at
  .globl \name
  .hidden \name
  .type \name, %function
  .balign 16
\name:
  jump \table, \at
  .size \name, . - \name
.endm
