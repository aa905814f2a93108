"""Import path of CPU servers: it holds their `sgl_kernel`. Nothing in this project imports from here."""
