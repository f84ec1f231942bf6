"""Write the shipped profiles from stated constants: `python -m scripts.shipped_profiles`.

`hardware` has the constants of the accelerators, `models` the shapes of the models, `times` the formulas,
`loading` memory and swaps. docs/profile-sources.md says where each constant comes from.
"""
