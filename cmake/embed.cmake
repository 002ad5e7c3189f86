# Turn a file into a C array with a zero byte after it: -DINPUT=file -DOUTPUT=file.c -DNAME=symbol
file(READ ${INPUT} hex HEX)
string(LENGTH "${hex}" n_digits)
math(EXPR n_bytes "${n_digits} / 2")
string(REGEX REPLACE "(..)" "0x\\1," bytes "${hex}")
file(WRITE ${OUTPUT} "#include <stddef.h>\n#include <stdint.h>\nconst uint8_t ${NAME}[] = {${bytes}0};\nconst size_t ${NAME}_bytes = ${n_bytes};\n")
