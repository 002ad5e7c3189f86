# A header as others include it: -DINPUT=base/status.h -DOUTPUT=include/sluice/status.h. Ours are written from the repository's root, whose
# folders may be theirs too; installed, all lie in sluice/.
file(READ ${INPUT} text)
string(REGEX REPLACE "#include \"proto/(sluice/v1/[a-z.-]+)\"" "#include \"\\1\"" text "${text}")
string(REGEX REPLACE "#include \"(base|net/trust)/([a-z_]+[.]h)\"" "#include \"sluice/\\2\"" text "${text}")
file(WRITE ${OUTPUT} "${text}")
