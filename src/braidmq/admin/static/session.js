// The signed-in principal. Views hide what its key may not do anyway.

export const me = { name: "", admin: false, dev: false };
